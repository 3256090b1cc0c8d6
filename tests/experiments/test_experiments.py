"""Experiments as data: what they run, at which scale, and what is shared."""

import json

import pytest

from wima.core.errors import UsageError
from wima.core.statistics import last_rounds
from wima.experiments.plan import (
    expand,
    expand_grid,
    experiments,
    find_experiment,
    methods,
    parse_axis,
    parse_seeds,
    scales,
    settings,
)
from wima.experiments.sheet import (
    Cell,
    Sheet,
    _tables,
    paper_label,
    printed,
    read_sheet,
    write_sheet,
)

PAPER = ("sota", "trends", "swa", "landmarks", "participation", "window", "parts")


def expanded(name, scale="paper", seeds=(0,), only=()):
    known = scales()[scale]
    return expand(name, experiments()[name], scale, known, list(seeds), "command", list(only))


def test_every_table_and_figure_of_the_paper_is_an_experiment():
    assert set(PAPER) <= set(experiments())
    assert all(experiments()[name].shown for name in PAPER)


@pytest.mark.parametrize("scale", ["smoke", "cpu", "paper"])
@pytest.mark.parametrize("name", list(experiments()))
def test_every_experiment_expands_at_every_scale(name, scale):
    sheet, jobs = expanded(name, scale)
    assert {cell.run for cell in sheet.cells} == {job.name for job in jobs}
    for job in jobs:
        for choice in job.settings.averagers:
            assert choice.make("averagers").name


def test_the_paper_scale_of_the_main_table_is_as_printed():
    sheet, jobs = expanded("sota", seeds=(0, 1, 2))
    assert len(jobs) == 11 * 7 * 3
    assert len(sheet.rows) == 11 and len(sheet.columns) == 7
    assert sheet.headings[:2] == ["plain", "WIMA"]
    rounds = {job.settings.data.name: job.settings.rounds for job in jobs}
    assert rounds == {
        "cifar10": 10000,
        "cifar100": 10000,
        "cifar100-pam": 10000,
        "femnist": 1500,
        "shakespeare": 1500,
    }
    assert {cell.models["WIMA"] for cell in sheet.cells} == {"wima100"}


@pytest.mark.parametrize("sheet", list(_tables()))
def test_every_printed_number_has_a_place_in_our_sheet(sheet):
    ours, _ = expanded(sheet)
    places = {(c.row, c.column, heading) for c in ours.cells for heading in c.models}
    for row, columns in _tables()[sheet]["rows"].items():
        for column, headings in columns.items():
            for heading in headings:
                assert (row, column, heading) in places
                assert printed(sheet, row, column, heading).where.startswith("Table")
    for row, columns in _tables()[sheet].get("remarks", {}).items():
        assert columns.keys() <= _tables()[sheet]["rows"][row].keys()


def test_the_main_table_is_printed_whole():
    ours, _ = expanded("sota")
    headings = ("plain", "WIMA")
    numbers = [
        printed("sota", c.row, c.column, heading) for c in ours.cells for heading in headings
    ]
    assert None not in numbers
    assert sum(number.value is None for number in numbers) == 6  # FedDyn on CIFAR-10 and FEMNIST


def test_the_paper_gains_by_its_own_numbers_everywhere():
    ours, _ = expanded("sota")
    for cell in ours.cells:
        plain, averaged = (printed("sota", cell.row, cell.column, h) for h in ("plain", "WIMA"))
        assert plain.value is None or averaged.value > plain.value


def test_experiments_share_runs_that_train_alike():
    table, _ = expanded("sota", "cpu")
    windows, jobs = expanded("window", "cpu")
    assert {job.name for job in jobs} <= {cell.run for cell in table.cells}
    assert len(jobs) == 2 and len(windows.cells) == 10


def test_a_run_is_watched_by_all_that_some_experiment_asks_for():
    _, jobs = expanded("window", "paper", only=["cifar10-0"])
    names = {averager.name for averager in jobs[0].settings.make("averagers")}
    assert {"wima5", "wima200", "swa", "lawa10x10", "ema0.9802"} <= names


def test_swa_has_runs_of_its_own_since_its_rate_steers():
    sheet, jobs = expanded("swa", "cpu", only=["cifar10-0"])
    schedules = sorted(str(job.settings.schedule) for job in jobs)
    assert schedules[0].startswith("constant") and len(set(schedules)) == 4
    assert "cycle=5" in schedules[1]
    cells = [cell for cell in sheet.cells if cell.column.startswith("CIFAR-10 ")]
    assert [cell.models.get("SWA") for cell in cells] == [
        None,
        "swa-s0.25-c5",
        "swa-s0.5-c5",
        "swa-c5",
    ]


def test_windows_scale_with_the_scale():
    sheet, _ = expanded("window", "cpu")
    factor = scales()["cpu"].windows
    for cell, window in zip(sheet.cells, 2 * [5, 10, 50, 100, 200], strict=True):
        used = max(1, round(window * factor))
        assert cell.models["average"] == f"wima{used}"
        assert cell.row == f"W = {used} (paper: {window})"  # called by what was used
        assert printed("window", cell.row, cell.column, "average").value


def test_the_average_is_called_by_its_window_unless_that_is_the_papers():
    for scale, heading in (("cpu", "WIMA, W = 20"), ("paper", "WIMA")):
        sheet, _ = expanded("sota", scale)
        assert sheet.headings[1] == heading
        assert printed("sota", "FedAvg", "FEMNIST", heading).value


def test_averages_that_look_back_are_called_by_the_rounds_that_they_see():
    sheet, _ = expanded("averagers", "cpu")
    assert sheet.rows == [
        "WIMA, W = 20",
        "LAWA, every 2nd of 20",
        "EMA like W = 20",
        "SWA from 75 %",
        "WIMA, W = 2",
        "EMA like W = 2",
    ]
    assert expanded("averagers", "paper")[0].rows[0] == "WIMA, W = 100"


def test_a_sheet_of_the_papers_names_is_read_with_those_of_the_windows_used(tmp_path):
    sheet, _ = expanded("window", "cpu")
    old = sheet._replace(
        rows=[paper_label(row) for row in sheet.rows],
        cells=[cell._replace(row=paper_label(cell.row)) for cell in sheet.cells],
    )
    path = write_sheet(old, tmp_path)
    assert old.rows[0] == "W = 5" and read_sheet(path) == sheet


def test_only_limits_the_runs_but_not_the_sheet():
    whole, every = expanded("sota")
    sheet, jobs = expanded("sota", only=["fedavg", "scaffold", "femnist"])
    assert sheet == whole and len(jobs) == 2 and len(every) == 77
    with pytest.raises(UsageError, match="did you mean 'fedprox'"):
        expanded("sota", only=["fedprx"])


def test_methods_tune_over_intervals_that_hold_their_default():
    for method in methods().values():
        for key, values in method.tune.items():
            kind, _, parameter = key.partition(".")
            text = method.set[kind]
            given = dict(pair.split("=") for pair in text.split(":")[1:])
            assert float(given.get(parameter, 1.0)) in values


def test_settings_name_presets_and_scales_name_them_too():
    presets = {setting.preset for setting in settings().values()}
    for scale in scales().values():
        assert scale.presets.keys() <= presets


def test_an_experiment_of_ones_own_is_read_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "T"\nrows = "methods"\nmethods = ["fedavg"]\nsettings = ["femnist"]\n'
        'averagers = { EMA = "ema:decay=0.5" }\n'
    )
    name, found = find_experiment(str(path))
    sheet, _ = expand(name, found, "smoke", scales()["smoke"], [0], "", [])
    assert name == "mine" and sheet.cells[0].models == {"plain": "plain", "EMA": "ema0.5"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "not valid TOML"),
        ('title = "T"', "methods: field required"),
        (
            'title="T"\nrows="methods"\nmethods=["fedavgg"]\nsettings=["femnist"]\naveragers={}',
            "did you mean 'fedavg'",
        ),
        (
            'title="T"\nrows="methods"\nmethods=["fedavg"]\nsettings=["mnist"]\naveragers={}',
            "Unknown setting 'mnist'",
        ),
    ],
)
def test_a_wrong_experiment_file_is_explained(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        find_experiment(str(path))


def test_unknown_experiments_are_named_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'sota'"):
        find_experiment("soto")
    with pytest.raises(UsageError, match="Cannot read"):
        find_experiment("nowhere.toml")


def test_a_grid_has_a_row_for_each_combination_and_a_cell_for_each_seed():
    axes = ["lr=0.1,0.05", "algorithm=fedavg,fedprox:mu=0.1"]
    sheet, jobs = expand_grid("sweep", "digits", ["rounds=7"], axes, [0, 1], "command")
    assert sheet.rows == [
        "lr=0.1, algorithm=fedavg",
        "lr=0.1, algorithm=fedprox:mu=0.1",
        "lr=0.05, algorithm=fedavg",
        "lr=0.05, algorithm=fedprox:mu=0.1",
    ]
    assert len(jobs) == 8 and sheet.last == last_rounds(7)
    assert {(j.settings.lr, j.settings.seed, j.settings.rounds) for j in jobs} == {
        (lr, seed, 7) for lr in (0.1, 0.05) for seed in (0, 1)
    }


@pytest.mark.parametrize("text", ["lr", "lr=", "=1"])
def test_a_wrong_axis_is_explained(text):
    with pytest.raises(UsageError, match="key=value,value"):
        parse_axis(text)


def test_seeds_are_lists_or_ranges():
    assert parse_seeds("0,2,2") == [0, 2]
    assert parse_seeds("1-3,7") == [1, 2, 3, 7]
    for wrong in ("", "a", "3-1", "-1"):
        with pytest.raises(UsageError, match="seeds like"):
            parse_seeds(wrong)


def sheet_of(*cells, **changes):
    made = Sheet("s", "T", "", "table", "cpu", "", "", 5, ["a"], ["c"], ["plain"], list(cells))
    return made._replace(**changes)


def test_a_sheet_comes_back_as_it_was_written(tmp_path):
    sheet = sheet_of(Cell("a", "c", 0, "run", {"plain": "plain"}))
    assert read_sheet(write_sheet(sheet, tmp_path)) == sheet


def test_a_sheet_keeps_what_was_there_with_its_runs(tmp_path):
    (tmp_path / "run1").mkdir()
    plain = {"plain": "plain"}
    write_sheet(
        sheet_of(Cell("a", "c", 1, "run1", plain), Cell("a", "c", 2, "gone", plain)), tmp_path
    )
    path = write_sheet(sheet_of(Cell("a", "c", 0, "run0", plain)), tmp_path)
    assert [cell.run for cell in read_sheet(path).cells] == ["run0", "run1"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s.update(rows="a"),
        lambda s: s.update(last=0),
        lambda s: s.update(kind="pie"),
        lambda s: s.pop("title"),
        lambda s: s["cells"][0].update(run="../elsewhere"),
        lambda s: s["cells"][0].update(row="b"),
        lambda s: s["cells"][0].update(models=3),
        lambda s: s["cells"][0].update(seed=-1),
    ],
)
def test_a_damaged_sheet_is_refused(tmp_path, damage):
    path = write_sheet(sheet_of(Cell("a", "c", 0, "run", {"plain": "plain"})), tmp_path)
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="is not a valid sheet"):
        read_sheet(path)


@pytest.mark.parametrize(
    "text", ["wima:window=inf", "wima:window=a", "wima:window", "swa:cycle=[]"]
)
def test_an_averager_of_an_experiment_that_is_none_is_refused(tmp_path, text):
    (tmp_path / "own.toml").write_text(
        'title = "t"\nmethods = ["fedavg"]\nsettings = ["cifar10-0"]\nrows = "averagers"\n'
        f"averagers = {{a = '{text}'}}\n"
    )
    name, experiment = find_experiment(str(tmp_path / "own.toml"))
    with pytest.raises(UsageError):
        expand(name, experiment, "smoke", scales()["smoke"], [0], "")

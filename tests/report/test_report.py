"""`wima report`: what its files say comes from the run folders, in whatever state they are."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.micro.report import moving_mean, write_run, write_runs
from wima.core.errors import UsageError
from wima.experiments.printed import printed
from wima.experiments.sheet import Cell, Sheet, write_sheet
from wima.report.gather import MARKER, gather
from wima.report.measure import Measure
from wima.report.tables import sheet_table
from wima.report.write import make_tables, write_report
from wima.runs.launch import launch
from wima.runs.settings import make_settings

ROUNDS = 60
LAST = 40
COLUMN, OTHER = "CIFAR-10 α = 0", "FEMNIST"


def curves(seed: int, height: float = 0.6, rounds: int = ROUNDS) -> dict[str, np.ndarray]:
    """A jagged curve and its moving mean, which is a little higher."""
    rng = np.random.default_rng(seed)
    plain = np.clip(height + 0.05 * rng.normal(size=rounds), 0, 1)
    return {"plain": plain, "wima10": moving_mean(plain, 10) + 0.02}


def make_sheet(cells: list[Cell], **changes) -> Sheet:
    fields = {
        "name": "sota",
        "title": "State of the art",
        "shown": "Table 2",
        "kind": "table",
        "scale": "smoke",
        "note": "60 rounds.",
        "command": "wima paper sota --scale smoke",
        "last": LAST,
        "rows": ["FedAvg", "SCAFFOLD", "FedDyn"],
        "columns": [COLUMN, OTHER],
        "headings": ["plain", "WIMA"],
        "cells": cells,
    }
    return Sheet(**{**fields, **changes})


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> Path:
    """FedAvg with three seeds, SCAFFOLD with one done and one at half, FedDyn diverged; gaps."""
    folder = tmp_path_factory.mktemp("reports") / "pool"
    models = {"plain": "plain", "WIMA": "wima10"}
    runs = [("FedAvg", COLUMN, seed, ROUNDS, "done") for seed in (0, 1, 2)]
    runs += [("SCAFFOLD", COLUMN, 0, ROUNDS, "done"), ("SCAFFOLD", COLUMN, 1, 30, "interrupted")]
    runs += [("SCAFFOLD", OTHER, 0, 20, "interrupted"), ("FedDyn", COLUMN, 0, 12, "diverged")]
    cells = []
    for number, (row, column, seed, rounds, state) in enumerate(runs):
        name = f"{row.lower()}-{number}"
        settings = {"rounds": ROUNDS, "seed": seed, "algorithm": row.lower()}
        write_run(folder / name, settings, curves(number, rounds=rounds), state)
        cells.append(Cell(row, column, seed, name, models))
    cells.append(Cell("FedAvg", OTHER, 0, "not-there", models))
    write_sheet(make_sheet(cells), folder)
    return folder


@pytest.fixture(scope="module")
def report(pool: Path) -> Path:
    out = pool.parent / "report"
    write_report([pool], out, Measure(target=0.65))
    return out


def data_of(report: Path) -> dict:
    """The data inside the page."""
    text = (report / "index.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(found[1])


def numbers(report: Path) -> list[dict[str, str]]:
    with (report / "data.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def place(report: Path, row: str, column: str, heading: str, seed: str = "") -> dict[str, str]:
    wanted = {"row": row, "column": column, "heading": heading, "seed": seed}
    return next(line for line in numbers(report) if wanted.items() <= line.items())


def test_a_number_is_the_mean_over_the_last_rounds_then_over_seeds(report):
    means = [curves(seed)["wima10"][-LAST:].mean() for seed in range(3)]
    line = place(report, "FedAvg", COLUMN, "WIMA")
    assert float(line["mean"]) == pytest.approx(np.mean(means))
    assert float(line["deviation"]) == pytest.approx(np.std(means, ddof=1))
    assert line["seeds"] == "3"
    for seed, mean in enumerate(means):
        own = place(report, "FedAvg", COLUMN, "WIMA", str(seed))
        assert float(own["mean"]) == pytest.approx(mean)


def test_gain_is_paired_over_seeds_or_over_the_rounds_of_one(report):
    pairs = [curves(s) for s in range(3)]
    gains = [(c["wima10"] - c["plain"])[-LAST:].mean() for c in pairs]
    several, single = (place(report, row, COLUMN, "WIMA") for row in ("FedAvg", "SCAFFOLD"))
    assert float(several["gain"]) == pytest.approx(np.mean(gains))
    assert (several["gain_basis"], several["gain_size"]) == ("seeds", "3")
    assert (single["gain_basis"], single["gain_size"]) == ("rounds", str(LAST))
    assert float(single["gain_half"]) > 0


def test_ours_stands_beside_the_papers_with_the_difference(report):
    paper = printed("sota", "FedAvg", COLUMN, "WIMA")
    ours = 100 * np.mean([curves(seed)["wima10"][-LAST:].mean() for seed in range(3)])
    difference = f"{ours - paper.value:+.2f}".replace("-", "\N{MINUS SIGN}")
    table = (report / "tables" / "sota.md").read_text(encoding="utf-8")
    assert f"{ours:.2f} ± " in table and f"({paper.value:.2f}, {difference})" in table
    entry = next(e for e in data_of(report)["tables"][0]["entries"] if e["at"] == [0, 0, 1])
    assert entry["paper"] == paper.value and entry["mean"] == pytest.approx(ours, abs=1e-3)
    assert entry["remark"] == paper.remark != ""


def test_what_is_missing_unfinished_or_diverged_says_so(report):
    assert place(report, "FedAvg", OTHER, "WIMA")["state"] == "-"
    assert place(report, "SCAFFOLD", OTHER, "WIMA")["state"] == f"20/{ROUNDS} rounds"
    assert place(report, "FedDyn", COLUMN, "plain")["state"] == "N/A"
    table = (report / "tables" / "sota.md").read_text(encoding="utf-8")
    for text in (f"20/{ROUNDS} rounds", "N/A (N/A)", "3 seeds", "1 of 2 seeds", "1 of 1 diverged"):
        assert text in table


def test_rows_and_columns_of_which_nothing_was_started_are_not_shown(tmp_path):
    models = {"plain": "plain", "WIMA": "wima10"}
    write_run(tmp_path / "pool" / "there", {"rounds": ROUNDS}, curves(0), "done")
    there = Cell("FedAvg", COLUMN, 0, "there", models)
    gone = [Cell(row, OTHER, 0, "gone", models) for row in ("FedAvg", "SCAFFOLD")]
    write_sheet(make_sheet([there, *gone]), tmp_path / "pool")
    write_report([tmp_path / "pool"], tmp_path / "out")
    shown = {(line["row"], line["column"]) for line in numbers(tmp_path / "out")}
    assert shown == {("FedAvg", COLUMN)}
    assert OTHER not in (tmp_path / "out" / "tables" / "sota.md").read_text(encoding="utf-8")


def test_one_markdown_page_has_all_tables_and_the_machines(report, pool):
    text = (report / "report.md").read_text(encoding="utf-8")
    table = (report / "tables" / "sota.md").read_text(encoding="utf-8")
    assert "#" + table.rstrip("\n") in text and "## Machines" in text
    assert f"- {len(list(pool.glob('*/status.json')))} runs: " in text


def test_stability_target_and_forgetting_are_in_the_data(report):
    plain = curves(0)["plain"]
    line = place(report, "FedAvg", COLUMN, "plain", "0")
    assert float(line["jump"]) == pytest.approx(np.abs(np.diff(plain[-LAST:])).mean())
    best = np.maximum.accumulate(plain)
    assert float(line["forgetting"]) == pytest.approx((best - plain)[-LAST:].mean())
    assert int(line["reached"]) == int(np.argmax(plain >= 0.65)) + 1


def test_everything_is_written_and_figures_are_pictures(report):
    names = {str(path.relative_to(report)) for path in report.rglob("*") if path.is_file()}
    figures = {f"figures/sota-{n}.{kind}" for n in (1, 2) for kind in ("png", "svg")}
    tables = {f"tables/sota.{kind}" for kind in ("md", "tex", "csv")}
    assert names == {"index.html", "data.csv", "report.md", MARKER} | figures | tables
    for name in figures:
        content = (report / name).read_bytes()
        if name.endswith("svg"):
            assert ElementTree.fromstring(content).tag.endswith("svg")
        else:
            assert content.startswith(b"\x89PNG")
    assert set(data_of(report)["files"]["sota"]) == figures | tables


def test_the_page_needs_nothing_but_itself(report):
    text = (report / "index.html").read_text(encoding="utf-8")
    head = text[: text.index('id="data"')]
    assert "{{" not in head
    assert not re.search(r"""(src|href)=["']?(https?:)?//|@import|url\(""", text)


def test_curves_in_the_page_are_those_of_the_records(report, pool):
    run = next(r for r in data_of(report)["runs"] if r["name"].endswith("fedavg-0"))
    expected = [round(10_000 * value) for value in curves(0)["plain"]]
    assert run["curves"]["plain"] == {"first": 1, "step": 1, "v": expected}
    assert run["command"] and "seed = 0" in run["settings"] and run["seconds"] == ROUNDS / 4
    assert run["name"] == str(pool / "fedavg-0")


def test_latex_compiles_or_is_at_least_balanced(report, tmp_path):
    text = (report / "tables" / "sota.tex").read_text(encoding="utf-8")
    bare = re.sub(r"\\[{}\\]", "", text)
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0
    lines = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in lines}) == 1
    assert text.isascii()
    if shutil.which("pdflatex"):
        frame = r"\documentclass{article}\usepackage{booktabs}\begin{document}%s\end{document}"
        (tmp_path / "t.tex").write_text(frame % text)
        command = ["pdflatex", "-halt-on-error", "t.tex"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_runs_that_differ_only_in_the_seed_are_one_row(tmp_path):
    for lr in (0.1, 0.2):
        for seed in (0, 1):
            settings = {
                "rounds": ROUNDS,
                "lr": lr,
                "seed": seed,
                "engine": ("serial", "auto")[seed],
            }
            write_run(tmp_path / "in" / f"{lr}-{seed}", settings, curves(seed))
    write_report([tmp_path / "in"], tmp_path / "out")
    table = data_of(tmp_path / "out")["tables"][0]
    assert table["rows"] == ["fedavg on digits, lr=0.1", "fedavg on digits, lr=0.2"]
    assert table["headings"] == ["plain", "wima10"]
    assert {entry["basis"] for entry in table["entries"]} == {"2 seeds"}


def test_the_same_run_twice_counts_once(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, {"rounds": ROUNDS}, curves(0))
    done = write_report([tmp_path / "a", tmp_path / "b", tmp_path / "a"], tmp_path / "out")
    assert place(tmp_path / "out", "fedavg on digits", "", "plain")["seeds"] == "1"
    assert [item.reason for item in done.omitted] == [f"the same settings and seed as {tmp_path}/a"]


def test_a_real_run_is_reported(tmp_path, capsys):
    settings = {"data": "digits", "clients": 20, "clients_per_round": 2, "rounds": 6}
    run = launch(make_settings({**settings, "window": 3, "engine": "serial"}), tmp_path / "run")
    write_report([tmp_path / "run"], tmp_path / "out")
    rounds, values = run.curve("wima3", "accuracy")
    line = place(tmp_path / "out", "fedavg on digits", "", "wima3")
    assert float(line["mean"]) == pytest.approx(np.mean(values)) and len(rounds) == 6
    assert data_of(tmp_path / "out")["runs"][0]["seconds"] > 0


def test_a_loss_is_better_if_it_is_less(pool, tmp_path):
    write_report([pool], tmp_path / "out", Measure("loss"))
    data = data_of(tmp_path / "out")
    assert data["measure"]["sign"] == -1 and not data["measure"]["share"]
    assert "paper" not in data["tables"][0]["entries"][0]
    loss = [2 - 2 * curves(seed)["plain"][-LAST:].mean() for seed in range(3)]
    line = place(tmp_path / "out", "FedAvg", COLUMN, "plain")
    assert float(line["mean"]) == pytest.approx(np.mean(loss))


def test_last_on_the_command_line_goes_before_the_sheets(pool, tmp_path):
    write_report([pool], tmp_path / "out", Measure(last=5))
    means = [curves(seed)["plain"][-5:].mean() for seed in range(3)]
    assert float(place(tmp_path / "out", "FedAvg", COLUMN, "plain")["mean"]) == pytest.approx(
        np.mean(means)
    )


def test_a_sheet_file_stands_for_its_runs(pool, tmp_path):
    write_run(pool.parent / "another" / "run", {"rounds": ROUNDS}, curves(0))
    done = write_report([pool / "sota.sheet.json"], tmp_path / "out")
    assert done.runs == 7 and len(done.tables) == 1 and not done.omitted


def test_the_papers_tables_stand_before_its_figures_and_those_before_our_own(tmp_path):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    cells = [Cell("FedAvg", COLUMN, 0, "run", {"plain": "plain", "WIMA": "wima10"})]
    shown = {"a": "", "b": "Figure 2", "c": "Table 4", "d": "Table 2"}
    for name, place in shown.items():
        write_sheet(make_sheet(cells, name=name, shown=place), tmp_path)
    done = write_report([tmp_path], tmp_path / "out")
    assert [table.sheet.name for table in done.tables] == ["d", "c", "b", "a"]


DAMAGE = {
    "no-settings": lambda folder: (folder / "settings.toml").unlink(),
    "broken-records": lambda folder: (folder / "records.jsonl").write_text("not json\n"),
    "unknown-setting": lambda folder: (folder / "settings.toml").write_text("nonsense = 1\n"),
    "binary-status": lambda folder: (folder / "status.json").write_bytes(b"\xff\xfe\x00"),
    "no-status": lambda folder: (folder / "status.json").write_text("[]"),
    "text-for-number": lambda folder: (folder / "records.jsonl").write_text(
        '{"t": 1, "metrics": {"plain": {"accuracy": "high"}}}\n'
    ),
    "other-metric": lambda folder: (folder / "records.jsonl").write_text(
        '{"t": 1, "metrics": {"plain": {"recall": 0.5}}}\n'
    ),
    "out-of-order": lambda folder: (folder / "records.jsonl").write_text(
        '{"t": 2, "metrics": {"plain": {"accuracy": 0.5}}}\n' * 2
    ),
}


@pytest.fixture
def broken(tmp_path) -> Path:
    """A good run among damaged ones, a foreign folder and a damaged sheet."""
    folder = tmp_path / "in"
    for name, damage in DAMAGE.items():
        damage(write_run(folder / name, {"rounds": ROUNDS}, curves(0)))
    (folder / "photos" / "summer").mkdir(parents=True)
    (folder / "photos" / "summer" / "sea.txt").write_text("blue")
    (folder / "bad.sheet.json").write_text("{}")
    write_run(folder / "good", {"rounds": ROUNDS}, curves(0))
    return folder


def test_broken_and_foreign_folders_are_named_and_the_rest_is_complete(broken, cli):
    code, out, err = cli("report", str(broken), "--out", "report")
    assert code == 0 and "1 runs, 1 tables" in out
    named = {*DAMAGE, "photos", "bad.sheet.json"}
    told = dict(re.findall(r"Left out (\S+): (.*)", err))
    assert {Path(name).name for name in told} == named
    assert all(told.values())
    data = data_of(Path("report"))
    assert {Path(path).name for path, _ in data["omitted"]} == named
    mean = curves(0)["plain"].mean()
    assert float(place(Path("report"), "fedavg on digits", "", "plain")["mean"]) == pytest.approx(
        mean
    )


def test_without_any_run_the_report_is_refused(cli, tmp_path):
    (tmp_path / "empty").mkdir()
    code, _, err = cli("report", "empty", "nowhere", "--out", "report")
    assert code == 2 and "no runs" in err and "nowhere: it does not exist" in err
    assert not Path("report").exists()


def test_nothing_is_overwritten_but_an_earlier_report_with_force(cli, tmp_path):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    (tmp_path / "mine").mkdir()
    code, _, err = cli("report", "run", "--out", "mine", "--force")
    assert code == 2 and "is no report" in err
    assert cli("report", "run", "--out", "out")[0] == 0
    (tmp_path / "out" / "index.html").write_text("old")
    code, _, err = cli("report", "run", "--out", "out")
    assert code == 2 and "--force" in err
    assert (tmp_path / "out" / "index.html").read_text() == "old"
    assert cli("report", "run", "--out", "out", "--force")[0] == 0
    assert (tmp_path / "out" / "index.html").read_text() != "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out", "run"]


def test_notes_stand_before_the_tables_and_must_be_text(cli, tmp_path):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    Path("mine.md").write_text("## What we saw\n\nFedDyn differs: *see* `docs`.\n")
    code, _, err = cli("report", "run", "--out", "report", "--notes", "mine.md")
    assert (code, err) == (0, "")
    page = Path("report/report.md").read_text()
    assert page.index("# Report") < page.index("## What we saw\n\nFedDyn") < page.index("| ---")
    assert "FedDyn differs" in Path("report/index.html").read_text()
    Path("bad.md").write_bytes(b"\xff\xfe\x00")
    for name, why in (("none.md", "No such file"), ("bad.md", "not UTF-8")):
        code, _, err = cli("report", "run", "--out", "other", "--notes", name)
        assert code == 2 and name in err and why in err and not Path("other").exists()


def test_an_earlier_report_inside_the_folder_is_not_foreign(cli, tmp_path):
    write_run(tmp_path / "runs" / "a", {"rounds": ROUNDS}, curves(0))
    assert cli("report", "runs", "--out", "runs/report")[0] == 0
    code, _, err = cli("report", "runs", "--out", "runs/report", "--force")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [("--last", "0", "positive"), ("--target", "80", "between 0 and 1"), ("--metric", "f1", "f1")],
)
def test_options_that_cannot_be_meant_are_refused(cli, tmp_path, option, value, told):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    code, _, err = cli("report", "run", "--out", "out", option, value)
    assert code == 2 and told in err and "Traceback" not in err


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_names_from_run_folders_cannot_leave_the_data(tmp_path):
    name = "<script>alert(1)<!--"
    settings = {"rounds": ROUNDS, "data": "<b>&amp;\\textbf{x}|`"}
    write_run(tmp_path / "in" / name, settings, {"plain": curves(0)["plain"], EVIL: np.ones(3)})
    cell = Cell(EVIL, EVIL, 0, name, {"plain": "plain", EVIL: EVIL})
    fields = {"rows": [EVIL], "columns": [EVIL], "headings": ["plain", EVIL]}
    sheet = make_sheet([cell], **fields, title=EVIL, note=EVIL, command=EVIL)
    write_sheet(sheet, tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert len(re.findall("<script", text)) == 2 and "alert(1)<" not in text
    assert data_of(tmp_path / "out")["tables"][0]["title"] == EVIL
    assert "<script" not in (tmp_path / "out" / "tables" / "sota.md").read_text().replace("\\<", "")


def test_a_sheet_cannot_write_outside_the_report(tmp_path):
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, curves(0))
    cell = Cell("a", "b", 0, "run", {"plain": "plain"})
    names = {"rows": ["a"], "columns": ["b"], "headings": ["plain"]}
    sheet = make_sheet([cell], name="sota", **names)
    path = write_sheet(sheet, tmp_path / "in")
    path.write_text(path.read_text().replace('"name": "sota"', '"name": "../../sota"'))
    shutil.copy(path, tmp_path / "in" / "again.sheet.json")
    write_report([tmp_path / "in"], tmp_path / "out")
    tables = sorted(p.name for p in (tmp_path / "out" / "tables").glob("*.md"))
    assert tables == ["sota-2.md", "sota.md"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path):
    odd = tmp_path / "in" / "caf\udce9"
    write_run(odd, {"rounds": ROUNDS}, curves(0))
    (odd / "environment.json").write_text('{"processor": NaN, "python": "\\ud800"}')
    write_report([tmp_path / "in"], tmp_path / "out")
    assert data_of(tmp_path / "out")["runs"][0]["name"] == str(odd)


def test_a_sheet_with_names_that_no_font_has_is_drawn(tmp_path):
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, curves(0))
    cell = Cell("行 \ud800", "$\x01^", 0, "run", {"plain": "plain"})
    names = {"rows": [cell.row], "columns": [cell.column], "headings": ["plain"]}
    write_sheet(make_sheet([cell], title="_$\ud800", **names), tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out")
    ElementTree.parse(tmp_path / "out" / "figures" / "sota.svg")
    assert data_of(tmp_path / "out")["tables"][0]["rows"] == [cell.row]


def test_a_sheet_of_which_no_run_is_there_is_refused(tmp_path):
    cell = Cell("a", "b", 0, "run", {"plain": "plain"})
    names = {"rows": ["a"], "columns": ["b"], "headings": ["plain"]}
    write_sheet(make_sheet([cell], **names), tmp_path / "in")
    with pytest.raises(UsageError, match="no runs"):
        write_report([tmp_path / "in"], tmp_path / "out")


def test_a_diverged_seed_makes_the_mean_not_available(tmp_path):
    for seed, state in ((0, "done"), (1, "diverged")):
        write_run(tmp_path / "in" / str(seed), {"rounds": ROUNDS, "seed": seed}, curves(0), state)
    write_report([tmp_path / "in"], tmp_path / "out")
    entry = data_of(tmp_path / "out")["tables"][0]["entries"][0]
    assert (entry["text"], entry["basis"], entry["mean"]) == ("N/A", "1 of 2 diverged", None)


def test_a_done_run_without_the_model_or_late_evaluations_has_no_number(tmp_path):
    early = {"plain": curves(0)["plain"], "wima10": np.full(3, 0.5)}  # evaluated in three rounds
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, early)
    cell = Cell("a", "b", 0, "run", {"plain": "plain", "early": "wima10", "never": "wima99"})
    names = {"rows": ["a"], "columns": ["b"], "headings": ["plain", "early", "never"]}
    write_sheet(make_sheet([cell], **names), tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out")
    states = [place(tmp_path / "out", "a", "b", h)["state"] for h in names["headings"]]
    assert states == ["done", "-", "-"]


def test_a_run_that_diverged_at_once_is_not_available(tmp_path):
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, {}, "diverged")
    write_report([tmp_path / "in"], tmp_path / "out")
    assert place(tmp_path / "out", "fedavg on digits", "", "plain")["state"] == "N/A"


def test_a_run_whose_last_values_are_not_finite_is_not_available(tmp_path):
    broken = np.where(np.arange(ROUNDS) == ROUNDS - 3, np.nan, 0.5)
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, {"plain": broken})
    write_report([tmp_path / "in"], tmp_path / "out")
    assert place(tmp_path / "out", "fedavg on digits", "", "plain")["state"] == "N/A"


def test_several_cells_may_share_a_run(tmp_path):
    made = curves(0)
    write_run(tmp_path / "run", {"rounds": ROUNDS}, {**made, "wima20": made["wima10"] + 0.01})
    cells = [
        Cell(f"W = {w}", "digits", 0, "run", {"plain": "plain", "average": f"wima{w}"})
        for w in (10, 20)
    ]
    fields = {"rows": ["W = 10", "W = 20"], "columns": ["digits"], "headings": ["plain", "average"]}
    path = write_sheet(make_sheet(cells, name="window", **fields), tmp_path)
    found = gather([tmp_path], "accuracy")
    table = sheet_table(path.resolve(), next(iter(found.sheets.values())), found, Measure())
    means = [table.entry(f"W = {w}", "digits", "average").mean for w in (10, 20)]
    assert means[1] - means[0] == pytest.approx(0.01)
    assert len(list(table.runs())) == 1
    assert len(make_tables(found, Measure())[0]) == 1  # no table of other runs


def test_a_run_that_has_not_begun_is_shown_as_such(tmp_path):
    write_run(tmp_path / "in" / "new", {"rounds": ROUNDS}, {}, "running")
    write_report([tmp_path / "in"], tmp_path / "out")
    line = place(tmp_path / "out", "fedavg on digits", "", "plain")
    assert line["state"] == f"0/{ROUNDS} rounds"


def test_the_page_of_500_runs_stays_small(tmp_path):
    write_runs(tmp_path / "in")
    done = write_report([tmp_path / "in"], tmp_path / "out")
    assert done.runs == 500 and not done.omitted
    assert (tmp_path / "out" / "index.html").stat().st_size < 15e6
    assert len(list((tmp_path / "out" / "figures").iterdir())) == 2
    assert len(data_of(tmp_path / "out")["tables"][0]["rows"]) == 100


def test_long_curves_are_thinned_in_the_page(tmp_path):
    values = np.random.default_rng(0).uniform(size=5000)
    write_run(tmp_path / "run", {"rounds": 5000}, {"plain": values})
    write_report([tmp_path / "run"], tmp_path / "out")
    curve = data_of(tmp_path / "out")["runs"][0]["curves"]["plain"]
    assert len(curve["v"]) <= 1002 and curve["t"][-1] == 5000
    assert max(curve["v"]) == round(10_000 * values.max())


def test_an_unwritable_place_is_a_users_mistake(tmp_path):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="Cannot write the report"):
        write_report([tmp_path / "run"], tmp_path / "file" / "out")

"""What rows of runs that are in no sheet are called: short, and never the same twice."""

from __future__ import annotations

from tests.helpers.reports import ROUNDS, curves, data_of
from tests.helpers.run_folders import write_run
from wima.report.names import LIMIT, group_names
from wima.report.write import write_report

BASE = {"algorithm": "fedavg", "data": "digits", "lr": "0.1", "rounds": "60", "averagers": "wima"}


def shorts(*changes: dict[str, str]) -> list[str]:
    return [*group_names([BASE | change for change in changes])]


def test_a_name_has_only_what_differs_among_runs_of_one_algorithm_and_data():
    other = {"algorithm": "scaffold", "rounds": "90", "lr": "1"}
    assert shorts({}, {"lr": "0.2"}, other) == [
        "fedavg on digits, lr=0.1",
        "fedavg on digits, lr=0.2",
        "scaffold on digits",
    ]


def test_what_is_not_set_is_not_named():
    assert shorts({}, {"alpha": "0.5"}) == ["fedavg on digits", "fedavg on digits, alpha=0.5"]


def test_averagers_are_named_only_if_nothing_else_differs():
    assert shorts({}, {"averagers": "ema"})[1] == "fedavg on digits, averagers=ema"
    assert shorts({}, {"averagers": "ema", "lr": "1"})[1] == "fedavg on digits, lr=1"


def test_long_names_are_cut_and_stay_different():
    many = [{f"setting_{i}": f"value-{i}-{n}" for i in range(9)} for n in range(3)]
    names = group_names([BASE | change for change in many])
    assert len(names) == 3
    for (name, whole), change in zip(names.items(), many, strict=True):
        assert len(name) <= LIMIT + 2
        assert all(f"{key}={value}" in whole for key, value in change.items())
    long = {"data": "x" * 200}
    one, two = shorts(long | {"lr": "1"}, long | {"lr": "2"})
    assert one != two and len(two) <= LIMIT + 6


def test_the_whole_name_is_on_hover_and_in_the_notes(tmp_path, no_figures):
    changes = {"lr": 0.125, "batch_size": 33, "weight_decay": 0.0625, "momentum": 0.75, "epochs": 7}
    write_run(tmp_path / "in" / "a", {"rounds": ROUNDS}, curves(0))
    write_run(tmp_path / "in" / "b", {"rounds": ROUNDS, **changes}, curves(1))
    write_report([tmp_path / "in"], tmp_path / "out")
    table = data_of(tmp_path / "out")["tables"][0]
    cut = next(row for row in table["rows"] if "lr=0.125" in row)
    assert cut.endswith("…")
    text = (tmp_path / "out" / "tables" / "runs.md").read_text(encoding="utf-8").replace("\\", "")
    for key, value in changes.items():
        assert f"{key}={value}" in table["long"][cut] and f"{key}={value}" in text
    assert "None" not in " ".join(table["rows"])

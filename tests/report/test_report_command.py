"""`wima report`: what it leaves out, refuses and never overwrites."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.helpers.reports import ROUNDS, curves, data_of, place
from tests.helpers.run_folders import write_run
from wima.core.errors import UsageError
from wima.core.statistics import last_rounds
from wima.report.write import write_report

pytestmark = pytest.mark.usefixtures("no_figures")

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
    mean = curves(0)["plain"][-last_rounds(ROUNDS) :].mean()
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
    assert code == 2 and "is not a report" in err
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


def test_an_unwritable_place_is_a_users_mistake(tmp_path):
    write_run(tmp_path / "run", {"rounds": ROUNDS}, curves(0))
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="Cannot write"):
        write_report([tmp_path / "run"], tmp_path / "file" / "out")


def test_notes_without_their_library_say_what_to_install(tmp_path, monkeypatch):
    write_run(tmp_path / "in", {"rounds": ROUNDS}, curves(0))
    (tmp_path / "notes.md").write_text("Words.", encoding="utf-8")
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    with pytest.raises(UsageError, match=r"pip install 'wima\[notes\]'"):
        write_report([tmp_path / "in"], tmp_path / "out", notes=tmp_path / "notes.md")
    write_report([tmp_path / "in"], tmp_path / "out")
    assert (tmp_path / "out" / "index.html").exists()

"""Trackers get what the run's folder has, once, and never hurt the run."""

from __future__ import annotations

import shutil
import sys
from math import isnan, nan
from pathlib import Path

import pytest

from tests.helpers.interrupted import after_round, killed_after, outcome
from tests.helpers.tracked import ROUNDS, settings_of
from wima.core.errors import Diverged, RunError, UsageError
from wima.core.signals import Interrupted
from wima.runs.launch import Runner, launch, resume
from wima.runs.run import Run, read_run
from wima.runs.settings import Settings, load_settings
from wima.runs.track import BY_NAME, export, hyperparameters, identity, scalars
from wima.simulation.simulate import Record, Simulation
from wima.storage.files import Lock


@pytest.fixture
def run(plain, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(plain, tmp_path / "copy"))


@pytest.fixture
def interrupted_after_7(monkeypatch):
    """The user interrupts the run when round 7 was recorded, before trackers hear of it."""
    monkeypatch.setattr(Runner, "append", Runner.append)  # to be restored
    after_round(7, interrupt)


def interrupt() -> None:
    raise KeyboardInterrupt


class Diary:
    """A tracker that notes what it is told."""

    told: list[object]

    def start(self, run: Run) -> None:
        self.told.append(run.path.name)

    def record(self, record: Record) -> None:
        self.told.append(record.t)

    def finish(self, state: str) -> None:
        self.told.append(state)


@pytest.fixture
def diary(monkeypatch) -> list[object]:
    told: list[object] = []
    monkeypatch.setattr(Diary, "told", told, raising=False)
    monkeypatch.setitem(BY_NAME, "diary", Diary)
    return told


def test_numbers_are_named_by_metric_and_model_and_the_rate_comes_last():
    metrics = {"plain": {"accuracy": 0.5, "loss": 2.0}, "wima50": {"accuracy": 0.75, "loss": 1.0}}
    given = scalars(Record(3, [0, 1], 0.1, metrics, 1.5))
    assert given == {
        "accuracy/plain": 0.5,
        "accuracy/wima50": 0.75,
        "loss/plain": 2.0,
        "loss/wima50": 1.0,
        "seconds": 1.5,
        "lr": 0.1,
    }
    assert list(given)[-1] == "lr"
    assert scalars(Record(1, [], 0.2, {}, nan)) == {"lr": 0.2}


def test_hyperparameters_are_settings_as_numbers_and_texts():
    flat = hyperparameters(settings_of(algorithm="fedprox:mu=0.1", exclude=True))
    assert flat["algorithm"] == "fedprox:mu=0.1"
    assert flat["averagers"] == "wima:window=3,ema"
    assert (flat["lr"], flat["rounds"], flat["exclude"]) == (0.05, ROUNDS, True)
    assert set(Settings.model_fields) - set(flat) == {
        name for name, value in settings_of(algorithm="fedprox") if value is None
    }


def test_rounds_read_from_a_folder_are_those_that_happened(plain, diary, tmp_path, monkeypatch):
    happened = []
    monkeypatch.setattr(Diary, "record", lambda self, record: happened.append(record))
    launch(settings_of(trackers=["diary"]), tmp_path / "r")
    read = read_run(tmp_path / "r").records
    assert [r._replace(seconds=0.0) for r in read] == [r._replace(seconds=0.0) for r in happened]
    assert [r.seconds for r in read] == pytest.approx([r.seconds for r in happened], abs=1e-6)


def test_null_reads_as_nan_and_a_time_that_is_missing_is_left_out(run):
    text = (run / "records.jsonl").read_text()
    accuracy = [*read_run(run).lines()][1]["metrics"]["plain"]["accuracy"]
    (run / "records.jsonl").write_text(text.replace(str(accuracy), "null", 1))
    (run / "times.jsonl").write_text('{"t": 2, "seconds": 0.5}\n')
    first, second, *_ = read_run(run).records
    assert "seconds" not in scalars(first) and scalars(second)["seconds"] == 0.5
    assert isnan(scalars(second)["accuracy/plain"])


@pytest.mark.parametrize(
    ("text", "names"),
    [("tensorboard", ["tensorboard"]), ("wandb,mlflow", ["wandb", "mlflow"]), ("[]", [])],
)
def test_trackers_are_a_setting_that_changes_no_result(text, names):
    settings = load_settings("digits", [f"trackers={text}"])
    assert settings.trackers == names
    assert settings.run_id == load_settings("digits", []).run_id


def test_a_run_is_the_same_for_trackers_after_a_resume_and_no_other_run_is(plain, run, tmp_path):
    assert identity(read_run(plain)) == identity(read_run(plain))
    launch(settings_of(), tmp_path / "other")
    paths = (plain, run, tmp_path / "other")
    assert len({identity(read_run(path)) for path in paths}) == len(paths)


def test_an_unknown_tracker_is_refused_before_anything_is_written(cli, tmp_path):
    code, _, err = cli("run", "digits", "trackers=tensorbord", "--out", "r")
    assert code == 2 and "did you mean 'tensorboard'?" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "module", "command"),
    [
        ("tensorboard", "torch.utils.tensorboard", "pip install tensorboard"),
        ("mlflow", "mlflow", "pip install mlflow-skinny sqlalchemy alembic"),
        ("wandb", "wandb", "pip install wandb"),
    ],
)
def test_a_missing_package_is_told_before_the_run(
    name, module, command, cli, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    code, _, err = cli("run", "digits", f"trackers={name}", "--out", "r")
    assert code == 2 and command in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_trackers_hear_of_all_rounds_and_of_the_end(diary, tmp_path):
    launch(settings_of(trackers=["diary"]), tmp_path / "r")
    assert diary == ["r", *range(1, ROUNDS + 1), "done"]


def test_after_a_resume_they_hear_of_all_rounds_again(diary, tmp_path, interrupted_after_7):
    with pytest.raises(Interrupted):
        launch(settings_of(trackers=["diary"]), tmp_path / "r")
    assert diary == ["r", *range(1, 7), "interrupted"]
    diary.clear()
    resume(tmp_path / "r")
    assert diary == ["r", *range(1, 6), *range(6, ROUNDS + 1), "done"]


def test_they_are_told_that_a_run_diverged_or_failed(diary, tmp_path, monkeypatch):
    with pytest.raises(Diverged):
        launch(settings_of(trackers=["diary"], lr=1e6, diverged=10.0), tmp_path / "a")
    assert diary[-1] == "diverged"

    def fails(self) -> Record:
        raise RuntimeError("no more")

    monkeypatch.setattr(Simulation, "_round", fails)
    with pytest.raises(RunError):
        launch(settings_of(trackers=["diary"]), tmp_path / "b")
    assert diary[-1] == "failed"


@pytest.mark.parametrize("moment", ["start", "record", "finish"])
def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(
    moment, plain, diary, tmp_path, monkeypatch, capsys
):
    class Broken(Diary):
        told: list[object] = []  # noqa: RUF012  (of the class: whoever makes one)

    def fails(*_) -> None:
        Broken.told.append("failed")
        raise OSError("the disk of the tracker is full\nand more")

    monkeypatch.setattr(Broken, moment, fails)
    monkeypatch.setitem(BY_NAME, "broken", Broken)
    launch(settings_of(trackers=["broken", "diary"]), tmp_path / "r")
    assert Broken.told.count("failed") == 1
    assert capsys.readouterr().err == (
        "Warning: the tracker broken failed and is disabled for this run. "
        "OSError: the disk of the tracker is full\n"
    )
    assert diary == ["r", *range(1, ROUNDS + 1), "done"]
    assert outcome(tmp_path / "r") == outcome(plain)
    assert read_run(tmp_path / "r").status["state"] == "done"


def test_who_does_not_wait_for_a_tracker_to_finish_still_has_a_finished_run(
    diary, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(Diary, "finish", lambda self, state: interrupt())
    assert launch(settings_of(trackers=["diary"]), tmp_path / "r").status["state"] == "done"
    assert "interrupted before they had written everything" in capsys.readouterr().err


def test_an_export_tells_the_same_as_a_run(run, diary):
    assert list(export([run], ["diary"])) == [f"{run}: {ROUNDS} rounds are in diary."]
    assert diary == ["copy", *range(1, ROUNDS + 1), "done"]


def test_a_run_whose_process_died_is_exported_as_interrupted(diary, tmp_path):
    killed_after(3, settings_of(), tmp_path / "r")
    list(export([tmp_path / "r"], ["diary"]))
    assert diary == ["r", 1, 2, 3, "interrupted"]


def test_a_run_that_goes_on_is_not_exported(run, diary):
    lock = Lock(run)
    with pytest.raises(UsageError, match="is still running; wait until it ends"):
        list(export([run], ["diary"]))
    lock.release()
    assert diary == []


def test_what_cannot_be_exported_is_named_and_the_rest_is_exported(cli, run, diary, tmp_path):
    foreign, damaged = tmp_path / "foreign", tmp_path / "damaged"
    foreign.mkdir()
    shutil.copytree(run, damaged)
    (damaged / "times.jsonl").write_text("what?\n")
    code, out, err = cli("track", str(foreign), str(damaged), str(run), "--to", "diary")
    assert code == 2 and f"{run}: {ROUNDS} rounds" in out
    assert f"{foreign} is not a run folder" in err
    assert f"{damaged / 'times.jsonl'} is damaged" in err
    assert diary[-1] == "done"


def test_a_tracker_that_fails_in_an_export_ends_it_with_1(cli, run, diary, monkeypatch):
    monkeypatch.setattr(Diary, "finish", lambda self, state: 1 / 0)
    code, _, err = cli("track", str(run), "--to", "diary")
    assert code == 1 and f"diary could not record {run}. ZeroDivisionError" in err


def test_a_tracker_can_be_a_class_of_ones_own(cli, tmp_path):
    (tmp_path / "notebook.py").write_text(
        "class Notebook:\n"
        "    def start(self, run): self.file = open('notes.txt', 'a')\n"
        "    def record(self, record): print(record.t, file=self.file)\n"
        "    def finish(self, state): print(state, file=self.file); self.file.close()\n"
        "class Half:\n"
        "    def start(self, run): pass\n"
    )
    code, _, err = cli("run", "digits", "rounds=2", "trackers=notebook.py:Notebook", "--out", "r")
    assert (code, err) == (0, "")
    assert (tmp_path / "notes.txt").read_text().split() == ["1", "2", "done"]
    assert cli("track", "r", "--to", "notebook:Notebook")[0] == 0
    assert (tmp_path / "notes.txt").read_text().split() == ["1", "2", "done"] * 2
    code, _, err = cli("run", "digits", "trackers=notebook.py:Half", "--out", "s")
    assert code == 2 and "must be a class with methods start, record and finish" in err

"""A run's folder: complete when the run ends, readable however it ends, enough to repeat it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from itertools import count
from math import inf, isnan, nan
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import vector_to_parameters

import wima
from tests.helpers.commands import shell, start
from tests.helpers.waiting import rounds_recorded, wait_for
from wima.core.errors import UsageError
from wima.data.sets.digits import digits
from wima.models import MLP
from wima.runs.folder import create_folder, free_path, write_status
from wima.runs.record import RecordFiles, as_line
from wima.runs.run import read_run, summarize
from wima.runs.settings import make_settings
from wima.simulation.measures.base import TaskMetrics
from wima.simulation.simulate import Record, Simulation

ROUNDS = 6
SETTINGS = {"rounds": ROUNDS, "clients_per_round": 3, "lr": 0.1, "batch_size": 5, "epochs": 1}
TEXTS = [f"{key}={value}" for key, value in {"clients": 20, **SETTINGS}.items()]


def foreground(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    """A command in a process group of its own, as a shell makes one."""
    return start(
        *arguments,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # A background job ignores Ctrl-C and hands that down; a user's shell does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a run from the shell."""
    folder = tmp_path_factory.mktemp("run")
    arguments = ["digits", *TEXTS, "eval_every=2", "eval_last=0", "window=2,4", "--out", "r"]
    done = shell("run", *arguments, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Records: r/records.jsonl" in done.stdout and "Picture: r/curves.png" in done.stdout
    return folder / "r"


def test_a_finished_run_has_all_its_files(finished):
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    models = {f"models/{name}.safetensors" for name in ("plain", "wima2", "wima4")}
    texts = {"settings.toml", "environment.json", "records.jsonl", "times.jsonl", "status.json"}
    files = {name for name in names if not name.startswith("checkpoints/")}
    assert files == models | texts | {"curves.png", "lock"}
    assert f"checkpoints/{ROUNDS:09d}.json" in names
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert list(finished.parent.iterdir()) == [finished]  # and nothing is left beside it


def test_a_finished_run_says_so_and_where_it_ran(finished):
    environment = json.loads((finished / "environment.json").read_text())
    done = {"state": "done", "done": ROUNDS, "rounds": ROUNDS, "reason": ""}
    assert done.items() <= json.loads((finished / "status.json").read_text()).items()
    assert environment["wima"] == wima.__version__
    assert environment["torch"] == torch.__version__
    assert "window=2,4" in environment["command"]


def test_records_have_a_line_per_round_with_metrics_where_evaluated(finished):
    lines = [json.loads(line) for line in (finished / "records.jsonl").read_text().splitlines()]
    assert [line["t"] for line in lines] == list(range(1, ROUNDS + 1))
    assert [line["t"] for line in lines if line["metrics"]] == [2, 4, 6]
    assert read_run(finished).curve("plain", "loss")[0] == [2, 4, 6]
    for line in lines:
        assert len(set(line["cohort"])) == SETTINGS["clients_per_round"]
        assert list(line["metrics"]) in ([], ["plain", "wima2", "wima4"])
        for metrics in line["metrics"].values():
            assert 0 <= metrics["accuracy"] <= 1 and metrics["loss"] > 0


def test_how_long_rounds_took_is_in_a_file_of_its_own(finished):
    times = [json.loads(line) for line in (finished / "times.jsonl").read_text().splitlines()]
    assert [line["t"] for line in times] == list(range(1, ROUNDS + 1))
    assert all(line["seconds"] > 0 for line in times)
    assert "seconds" not in (finished / "records.jsonl").read_text()


def test_saved_models_are_those_of_the_simulation_by_name(finished):
    bundle = digits(num_clients=20, alpha=0.0)
    task = wima.make_task(MLP, bundle.train, (bundle.x_test, bundle.y_test))
    simulation = wima.simulate(task, wima.FedAvg(), eval_every=0, **SETTINGS)
    models = [simulation.w.clone() for _ in simulation]
    newest = [w.double() for w in models[-2:]], [w.double() for w in models[-4:]]
    means = {f"wima{len(ws)}": (sum(ws) / len(ws)).float() for ws in newest}
    for name, w in {"plain": models[-1], **means}.items():
        expected: nn.Module = MLP()
        vector_to_parameters(w, expected.parameters())
        saved = load_file(finished / "models" / f"{name}.safetensors")
        assert {n: t.shape for n, t in saved.items()} == {
            n: p.shape for n, p in expected.named_parameters()
        }
        for n, parameter in expected.named_parameters():
            torch.testing.assert_close(saved[n], parameter.detach(), rtol=2e-7, atol=0)


def test_the_settings_of_a_run_repeat_it_byte_for_byte(finished, cli, tmp_path):
    again = tmp_path / "again"
    assert cli("run", str(finished / "settings.toml"), "--out", str(again))[0] == 0
    assert (again / "settings.toml").read_text() == (finished / "settings.toml").read_text()
    for model in (finished / "models").iterdir():
        assert (again / "models" / model.name).read_bytes() == model.read_bytes()
    records = [(path / "records.jsonl").read_bytes() for path in (finished, again)]
    assert records[0] == records[1]


def test_a_summary_takes_mean_and_deviation_over_the_last_rounds(finished):
    run = read_run(finished)
    late = [r["metrics"] for r in run.lines() if r["t"] > ROUNDS - ROUNDS // 4]
    row = summarize(run)[run.models.index("wima2")]
    assert (row.model, row.evaluations, row.last) == ("wima2", len(late), ROUNDS // 4)
    assert row.mean == pytest.approx(sum(m["wima2"]["accuracy"] for m in late) / len(late))


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("engine", [["engine=serial"], ["engine=processes", "workers=2"]])
def test_ctrl_c_ends_a_run_in_good_order(tmp_path, engine):
    rounds = 10**6
    arguments = ("run", "digits", f"rounds={rounds}", *engine, "--out", "r")
    with foreground(*arguments, cwd=tmp_path) as process:
        try:
            wait_for(lambda: rounds_recorded(tmp_path / "r") >= 3, "three rounds")
            workers = children(process.pid)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    run = read_run(tmp_path / "r")
    done = run.status["done"]
    assert process.returncode == 130
    assert f"Interrupted after {done} of {rounds} rounds" in err and "Traceback" not in err
    assert run.status["state"] == "interrupted"
    assert done >= 3 and [record["t"] for record in run.lines()] == list(range(1, done + 1))
    assert len(workers) == (1 if "workers=2" in engine else 0)  # the other is the parent
    assert not any(running(worker) for worker in workers)


def test_ctrl_c_while_models_are_evaluated_counts_the_rounds_recorded(cli, tmp_path, monkeypatch):
    calls, combine = count(1), TaskMetrics.combine

    def interrupted(self, parts):
        if next(calls) > 4:  # two models per round
            raise KeyboardInterrupt
        return combine(self, parts)

    monkeypatch.setattr(TaskMetrics, "combine", interrupted)
    code, _, err = cli("run", "digits", *TEXTS, "window=2", "--out", "r")
    run = read_run(tmp_path / "r")
    assert (code, len(run.records), run.status["done"]) == (130, 2, 2)
    assert f"Interrupted after 2 of {ROUNDS} rounds" in err


def test_ctrl_c_before_the_first_round_says_so_and_writes_nothing(cli, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("wima.runs.launch.build", interrupted)
    code, _, err = cli("run", "digits", "--out", "r")
    assert list(tmp_path.iterdir()) == []
    assert (code, err) == (130, "Interrupted before the first round; nothing was written.\n")


def test_a_run_that_fails_keeps_its_records_and_the_reason(cli, tmp_path, monkeypatch):
    play = Simulation._round

    def fails_in_the_third(self) -> Record:
        if self.t == 2:
            raise RuntimeError("the disk of client 7 is on fire")
        return play(self)

    monkeypatch.setattr(Simulation, "_round", fails_in_the_third)
    code, _, err = cli("run", "digits", *TEXTS, "--out", "r")
    run = read_run(tmp_path / "r")
    assert code == 1 and "Traceback" not in err
    assert f"failed after 2 of {ROUNDS} rounds: the disk of client 7 is on fire" in err
    assert "error.txt" in err
    assert (run.status["state"], run.status["done"]) == ("failed", 2)
    assert run.status["reason"] == "the disk of client 7 is on fire"
    assert [record["t"] for record in run.lines()] == [1, 2]
    trace = (tmp_path / "r" / "error.txt").read_text()
    assert "Traceback" in trace and "fails_in_the_third" in trace


class Folder:
    """A run folder that is written round by round."""

    def __init__(self, path: Path) -> None:
        self.path, self.settings = path, make_settings({"rounds": 3})
        self.lock = create_folder(path, self.settings, {"engine": "serial"})
        self.files = RecordFiles(path, None)

    def append(self, record: Record) -> None:
        self.files.append(as_line(record), {"t": record.t, "seconds": record.seconds})

    def close(self, state: str) -> None:
        self.files.close()
        write_status(self.path, self.settings, state, 0)
        self.lock.release()


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path / "r")


def record(t: int, **accuracies: float) -> Record:
    metrics = {model: {"accuracy": value} for model, value in accuracies.items()}
    return Record(t, [0, 1], 0.1, metrics, 0.5)


def test_a_run_that_goes_on_can_be_read(folder):
    folder.append(record(1, plain=0.25))
    run = read_run(folder.path)
    assert (run.status["state"], run.settings) == ("running", make_settings({"rounds": 3}))
    assert run.curve("plain", "accuracy") == ([1], [0.25])
    folder.close("done")


def test_a_torn_last_line_is_ignored(folder):
    for t in (1, 2):
        folder.append(record(t, plain=t / 4))
    folder.close("interrupted")
    with (folder.path / "records.jsonl").open("a") as records:
        records.write('{"t": 3, "cohort": [0, 1], "met')
    assert read_run(folder.path).curve("plain", "accuracy") == ([1, 2], [0.25, 0.5])


def test_numbers_that_json_does_not_have_become_null_and_read_as_nan(folder):
    for t, value in enumerate((0.5, nan, inf, -inf), start=1):
        folder.append(record(t, plain=value))
    folder.close("done")
    text = (folder.path / "records.jsonl").read_text()
    assert text.count("null") == 3 and "NaN" not in text and "Infinity" not in text
    rounds, values = read_run(folder.path).curve("plain", "accuracy")
    assert rounds == [1, 2, 3, 4]
    assert values[0] == 0.5 and all(isnan(value) for value in values[1:])


def test_a_run_folder_is_never_written_over(folder):
    folder.close("done")
    with pytest.raises(UsageError, match="already exists"):
        create_folder(folder.path, make_settings({}), {})


@pytest.mark.parametrize("content", [{}, {"notes.txt": "hello"}, {"settings.toml": "[tool]\n"}])
def test_a_folder_of_something_else_is_refused(tmp_path, content):
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["settings.toml", "records.jsonl", "status.json"])
def test_a_run_folder_that_lacks_a_file_is_refused_by_name(folder, name):
    folder.close("done")
    (folder.path / name).unlink()
    with pytest.raises(UsageError, match=name):
        read_run(folder.path)


def test_a_free_path_is_the_path_or_the_first_number_behind_it(tmp_path):
    demo = tmp_path / "demo"
    assert free_path(demo) == demo
    for taken, free in (("demo", "demo-2"), ("demo-2", "demo-3"), ("demo-4", "demo-3")):
        (tmp_path / taken).mkdir()
        assert free_path(demo) == tmp_path / free

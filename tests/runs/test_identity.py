"""A folder's result belongs to the objects that it was made of: others are refused or listed."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wima
from tests.helpers.interrupted import after_round, killed_after, settings_of
from tests.helpers.unequal import OPTIONS, SIZES, task_of
from wima.core.signals import Interrupted
from wima.runs.identity import described
from wima.runs.launch import launch, resume
from wima.runs.record import as_line
from wima.runs.settings import make_settings
from wima.simulation.options import uniform_cohorts
from wima.storage.segments import Storage


class Net(nn.Module):
    """A network whose activation no repr shows."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 3)])
        self.activation = activation

    def forward(self, x):
        return self.layers[1](self.activation(self.layers[0](x)))


@dataclass(frozen=True)
class Pull(wima.Algorithm):
    """Shifts every model, by a tensor or a function."""

    shift: Any = None

    def local(self, w, server, client):
        shift = self.shift(w) if callable(self.shift) else self.shift
        return wima.Local(w, shift=torch.zeros_like(w) if shift is None else shift)


def smoothed(output, y):
    return F.cross_entropy(output, y, label_smoothing=0.2)


def task(activation=F.relu, loss=F.cross_entropy, scale=1.0, **options) -> wima.Task:
    base = task_of()
    data = wima.FederatedData(base.data.x * np.float32(scale), base.data.y, base.data.offsets)
    test = (base.evaluate.x, base.evaluate.y)
    return wima.make_task(lambda: Net(activation), data, test, loss=loss, **options)


def cohorts(offset: int):
    usual = uniform_cohorts(len(SIZES), OPTIONS["clients_per_round"])
    return lambda seed, t: usual(seed, t + offset)


def small(size: float) -> torch.Tensor:
    """Too small to be seen in a repr."""
    shift = torch.zeros(43)
    shift[20] = size
    return shift


SAME: dict[str, Any] = {**OPTIONS, "averagers": {"a": wima.WIMA(3), "b": wima.EMA(decay=0.5)}}
OTHERS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "data": lambda: (task(scale=2.0), {}),
    "activation": lambda: (task(F.elu), {}),
    "loss": lambda: (task(loss=smoothed), {}),
    "metrics": lambda: (
        task(metrics={"accuracy": lambda o, y: (o.argmax(1) != y).double().mean()}),
        {},
    ),
    "cohorts": lambda: (task(), {"cohorts": cohorts(2)}),
    "a tensor": lambda: (task(), {"algorithm": Pull(small(2e-6))}),
    "names": lambda: (task(), {"averagers": {"b": wima.WIMA(3), "a": wima.EMA(decay=0.5)}}),
}


def call(path: Path, made: wima.Task, **changes: Any) -> wima.Run:
    parts = {"cohorts": cohorts(1), "algorithm": Pull(small(1e-6))}
    return wima.run(made, out=path, resume=True, **{**SAME, **parts, **changes})


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("done", [True, False], ids=["finished", "unfinished"])
@pytest.mark.parametrize("other", OTHERS)
def test_other_objects_are_refused(other, done, tmp_path):
    if not done:
        after_round(3, stop)
    with contextlib.nullcontext() if done else pytest.raises(Interrupted):
        call(tmp_path / "run", task())
    made, changes = OTHERS[other]()
    with pytest.raises(wima.UsageError, match="was started with different settings, data, code"):
        call(tmp_path / "run", made, **changes)
    same = call(tmp_path / "run", task())  # new objects that are alike
    assert same.t == 6 and list(same.vectors) == ["plain", "a", "b"]


def test_a_new_start_is_only_named_once_there_is_a_checkpoint(tmp_path, capsys):
    def net(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Linear(6, 3)

    def begin(path: Path, seed: int) -> wima.Run:
        base = task_of()
        made = wima.make_task(net(seed), base.data, (base.evaluate.x, base.evaluate.y))
        return wima.run(made, out=path, resume=True, **OPTIONS)

    after_round(3, stop)
    with pytest.raises(Interrupted):
        begin(tmp_path / "run", 0)
    assert not [*(tmp_path / "run").glob("checkpoints/*.json")]
    with pytest.raises(wima.UsageError, match=r"start\..*then"):
        begin(tmp_path / "run", 1)
    assert begin(tmp_path / "run", 0).t == 6
    with pytest.raises(wima.UsageError, match=r"start\..*then"):
        begin(tmp_path / "run", 1)
    after_round(3, lambda: os.kill(os.getpid(), signal.SIGTERM))  # this writes a checkpoint
    with pytest.raises(Interrupted):
        begin(tmp_path / "saved", 0)
    resumed = begin(tmp_path / "saved", 1)
    assert "The first model would now be made in another way" in capsys.readouterr().out
    expected = wima.read_run(tmp_path / "run").records[-1].metrics
    assert resumed.records[-1].metrics == expected


SCRIPT = """
import sys, torch, wima
from dataclasses import dataclass
from tests.helpers.unequal import OPTIONS, task_of
from tests.helpers.interrupted import after_round
import os, signal

STRENGTH = 0.0
def strength(): return {x for x in ("a", "b", "c")} and STRENGTH

@dataclass(frozen=True)
class Pull(wima.Algorithm):
    how: object
    def local(self, w, server, client):
        return wima.Local(w, prox=self.how())

if sys.argv[1] == "stop":
    after_round(4, lambda: os.kill(os.getpid(), signal.SIGTERM))
run = wima.run(task_of(), Pull(strength), out="run", resume=True, **OPTIONS)
print(run.t)
"""


def python(
    folder: Path, script: str, *arguments: str, seed: int = 0
) -> subprocess.CompletedProcess:
    (folder / "script.py").write_text(script)
    root = str(Path(wima.__file__).parents[1])
    around = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": root}
    command = [sys.executable, "script.py", *arguments]
    return subprocess.run(
        command, cwd=folder, env=around, capture_output=True, text=True, check=False
    )


def test_a_function_as_a_field_is_the_same_in_another_process_and_no_other(tmp_path, cold):
    assert "resumes the run" in python(tmp_path, SCRIPT, "stop").stderr
    changed = SCRIPT.replace("STRENGTH = 0.0", "STRENGTH = 0.5")
    refused = python(tmp_path, changed, "go on", seed=1)
    assert "STRENGTH: 0.0 then, 0.5 now" in refused.stderr
    commented = SCRIPT.replace("STRENGTH = 0.0", '"""No."""\n\n# Nothing\nSTRENGTH = (0.0)')
    done = python(tmp_path, commented, "go on", seed=2)
    assert done.stdout.split()[-1] == "6", done.stderr


def test_what_is_described_has_no_address_and_knows_its_values():
    def maker(value):
        return lambda: value

    for alike in (lambda: maker(3), lambda: {"b": {2, 1}, "a": np.arange(3)}, lambda: Pull(len)):
        text = json.dumps(described(alike()))
        assert text == json.dumps(described(alike())) and "0x" not in text
    different = [maker(3), maker(4), small(1e-6), small(2e-6), F.relu, F.elu, nn.ReLU(), nn.ELU()]
    different += [np.zeros(3), np.zeros((3, 1)), np.zeros(3, "f4"), Net, Pull, {"a": 1}, {"a": 2}]
    assert len({json.dumps(described(thing)) for thing in different}) == len(different)


def test_averages_of_another_kind_are_not_decoded(tmp_path, monkeypatch):
    killed_after(9, settings_of(rounds=12), tmp_path / "run")
    monkeypatch.setattr("wima.runs.checkpoint.differences", lambda then, now: [])
    path = tmp_path / "run" / "settings.toml"
    path.write_text(path.read_text().replace('name = "ema"', 'name = "power-ema"'))
    with pytest.raises(wima.RunError, match=r"has the averages .*EMA"):
        resume(tmp_path / "run")


# Runs that stand side by side


def npz(path: Path, seed: int) -> str:
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(60, 4)).astype("f4"), draw.integers(0, 3, 60)
    np.savez(path, x=x, y=y, client=np.arange(60) % 12, x_test=x[:9], y_test=y[:9])
    return str(path)


def launched(path: Path, **settings: Any) -> None:
    given = {"clients": None, "rounds": 4, "checkpoint_every": 0, "averagers": "wima:window=2"}
    launch(settings_of(**{**given, **settings}), path)


def test_replaced_data_are_not_compared_and_not_reported(tmp_path, cli):
    data = npz(tmp_path / "data.npz", 0)
    launched(tmp_path / "runs" / "old", data=data)
    npz(tmp_path / "data.npz", 1)
    launched(tmp_path / "runs" / "new", data=data, algorithm="fedprox:mu=0.1")
    os.utime(tmp_path / "runs" / "new")
    aged(tmp_path / "runs" / "old")
    code, _, err = cli("compare", "runs")
    assert code == 2 and "its data differs from that of runs/new" in err
    code, _, err = cli("report", "runs", "--out", "report")
    assert code == 0 and "Left out runs/old: its data differs from that of runs/new" in err


def aged(path: Path) -> None:
    """Let a run be older than all others."""
    file = path / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "started": "2020-01-01"}))


def test_runs_on_different_own_data_are_not_compared(tmp_path, cli):
    for name, scale, algorithm in (("a", 1.0, wima.FedAvg()), ("b", 2.0, wima.FedProx(mu=0.1))):
        wima.run(task(scale=scale), algorithm, out=tmp_path / "runs" / name, **OPTIONS)
    code, _, err = cli("compare", "runs")
    assert code == 2 and "its data differs from that of runs/" in err
    wima.run(task(), wima.FedProx(mu=0.1), out=tmp_path / "runs" / "c", **OPTIONS)
    assert cli("compare", "runs/a", "runs/c")[0] == 0


OWN = """
import wima
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine(wima.FedProx):
    mu: float = {mu}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Callable[[str], None]:
    """Write own code, as a new process finds it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])

    def write(text: str) -> None:
        Path("mine_of_identity.py").write_text(text)
        sys.modules.pop("mine_of_identity", None)

    yield write
    sys.modules.pop("mine_of_identity", None)


def test_a_sweep_does_not_mix_old_and_edited_code(cli, mine):
    mine(OWN.format(mu=0.1))
    command = ["sweep", "digits", "rounds=2", "engine=serial", "algorithm=mine_of_identity.py:Mine"]
    command += ["--jobs", "1", "--out", "sweep", "--seeds"]
    assert cli(*command, "0")[0] == 0
    mine("# The same\n" + OWN.format(mu=0.1))
    assert cli(*command, "0")[0] == 0
    mine(OWN.format(mu=0.2))
    code, out, err = cli(*command, "0,1")
    assert code == 1 and "the code of mine_of_identity.py:Mine has changed" in out + err
    code, _, err = cli("compare", "sweep")
    assert code == 2 and "code of mine_of_identity.py:Mine" in err


def test_a_sweep_does_not_mix_old_and_replaced_data(cli, tmp_path):
    data = npz(tmp_path / "data.npz", 0)
    command = ["sweep", "digits", f"data={data}", "clients=none", "alpha=none", "rounds=2"]
    command += ["clients_per_round=3", "engine=serial", "--jobs", "1", "--out", "sweep", "--seeds"]
    code, out, err = cli(*command, "0")
    assert code == 0, out + err
    for path in (tmp_path / "sweep").glob("*/environment.json"):
        aged(path.parent)
    npz(tmp_path / "data.npz", 1)
    code, out, err = cli(*command, "0,1")
    assert code == 1 and "broken" in err and "its data differs from that of" in err


def test_edited_code_does_not_resume_a_run(tmp_path, mine):
    mine(OWN.format(mu=0.1))
    settings = make_settings(
        {"algorithm": "mine_of_identity.py:Mine", "rounds": 9, "engine": "serial"}
    )
    killed_after(3, settings, tmp_path / "run")
    mine(OWN.format(mu=0.2))
    with pytest.raises(wima.UsageError, match=r"mine_of_identity.py:Mine: its code was changed"):
        resume(tmp_path / "run")
    mine('"""A remark."""\n' + OWN.format(mu=0.1))
    assert resume(tmp_path / "run").t == 9


# The count of rounds without a usable update


def test_the_count_of_unusable_rounds_is_resumed(tmp_path):
    options = {**OPTIONS, "rounds": 8, "faults": wima.Faults(exclude=True), "clients_per_round": 1}

    def cohort(seed: int, t: int) -> list[int]:
        return [3] if t in (2, 3, 4) else [t % 3]

    def start(path: Path, **changes: Any) -> wima.Run:
        return wima.run(
            task_of(poison=3), out=path, resume=True, cohorts=cohort, **{**options, **changes}
        )

    message = "No client sent a usable update in 3 consecutive rounds"
    with pytest.raises(wima.RunError, match=message):
        start(tmp_path / "whole")
    after_round(4, lambda: os.kill(os.getpid(), 15))
    with pytest.raises(Interrupted):
        start(tmp_path / "parts")
    for _ in range(2):  # however often it is resumed
        with pytest.raises(wima.RunError, match=message):
            start(tmp_path / "parts")
    records = [(tmp_path / name / "records.jsonl").read_bytes() for name in ("whole", "parts")]
    assert records[0] == records[1]


# Every option, in memory and in a folder


@dataclass(frozen=True)
class Share(wima.Measure):
    better = {"zeros": "lower"}  # noqa: RUF012

    def part(self, output, y):
        return int((y == 0).sum())

    def combine(self, parts):
        return {"zeros": sum(parts)}


VALUES: dict[str, Any] = {
    "progress": True,
    "rounds": 5,
    "clients_per_round": 3,
    "lr": 0.05,
    "batch_size": "full",
    "epochs": 2,
    "steps": 3,
    "last_batch": "short",
    "weight_decay": 0.01,
    "momentum": 0.5,
    "clip": 0.1,
    "seed": 5,
    "averagers": {"mine": wima.WIMA(2), "other": wima.EMA(decay=0.5)},
    "algorithm": wima.Scaffold(),
    "server_opt": wima.Adam(lr=0.01),
    "stack_server": True,
    "schedule": wima.Cosine(),
    "weighting": "uniform",
    "cohorts": "poisson",
    "faults": wima.Faults(dropout=0.4),
    "privacy": wima.Gaussian(clip=0.5, noise=1.0),
    "eval_every": 0,
    "eval_last": 1,
    "client_eval_every": 2,
    "client_sample": 2,
    "calibration": True,
    "finetune": wima.FineTune(steps=2),
    "measures": [Share()],
    "diverged": 3e4,
    "engine": "reference",
    "workers": 1,
    "storage": Storage(dtype=torch.bfloat16),
}
NEEDS: dict[str, dict[str, Any]] = {
    "eval_last": {"eval_every": 3},
    "client_sample": {"client_eval_every": 2},
    "privacy": {"weighting": "uniform"},
    "eval_every": {"averagers": wima.WIMA(2)},
}


def test_every_option_is_tried():
    names = {*inspect.signature(wima.run).parameters} - {"task", "out", "resume", "wrong", "make"}
    assert names == VALUES.keys()


@pytest.mark.parametrize("option", VALUES)
def test_an_option_does_the_same_with_a_folder(option, tmp_path):
    base = task_of()
    test = (base.evaluate.x, base.evaluate.y)
    owners = np.arange(len(base.evaluate.x)) % len(SIZES)

    def made() -> wima.Task:
        factory = lambda: nn.Linear(6, 3)  # noqa: E731
        return wima.make_task(factory, base.data, test, test_clients=owners)

    options = {
        **OPTIONS,
        "averagers": wima.WIMA(3),
        **NEEDS.get(option, {}),
        option: VALUES[option],
    }
    memory, folder = wima.run(made(), **options), wima.run(made(), out=tmp_path / "run", **options)
    records = [[*map(as_line, run.records)] for run in (memory, folder)]
    assert records[0] == records[1]
    assert {*memory.vectors} == {*folder.vectors} > {"plain"}
    assert all(torch.equal(w, folder.vectors[name]) for name, w in memory.vectors.items())
    again = wima.run(made(), out=tmp_path / "run", resume=True, **options)
    assert len(again.records) == len(records[0])


# Whose code is imported


def of_another(path: Path, origin: dict[str, Any] | None) -> None:
    file = path / "environment.json"
    around = json.loads(file.read_text())
    around.pop("origin", None)
    file.write_text(json.dumps({**around, **({"origin": origin} if origin else {})}))


def test_code_of_another_users_folder_is_imported_only_if_trusted(tmp_path, cli, mine, monkeypatch):
    mine(OWN.format(mu=0.1))
    settings = make_settings(
        {"algorithm": "mine_of_identity.py:Mine", "rounds": 9, "engine": "serial"}
    )
    killed_after(3, settings, tmp_path / "run")
    of_another(tmp_path / "run", {"user": 12345, "machine": "elsewhere"})
    mine("raise SystemExit('imported')")
    code, _, err = cli("resume", "run")
    assert code == 2 and "was not made by this user on this machine" in err and "--trust" in err
    assert "mine_of_identity.py:Mine" in err and "mine_of_identity" not in sys.modules
    mine(OWN.format(mu=0.1))
    assert cli("resume", "run", "--trust")[0] == 0
    sys.modules.pop("mine_of_identity")
    run = wima.read_run("run")
    with pytest.raises(wima.UsageError, match=r"trust=True"):
        run.model()
    assert wima.read_run("run", trust=True).model() is not None
    of_another(tmp_path / "run", None)  # of an earlier version: its owner decides
    assert wima.read_run("run").model() is not None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(wima.UsageError, match=r"trust=True"):
        wima.read_run("run").model()


def test_a_foreign_folder_without_code_needs_no_trust(tmp_path):
    killed_after(3, settings_of(rounds=12), tmp_path / "run")
    of_another(tmp_path / "run", {"user": 12345, "machine": "elsewhere"})
    assert resume(tmp_path / "run").t == 12

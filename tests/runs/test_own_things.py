"""A user's own classes and functions in settings, from a file that is no part of the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.helpers.interrupted import killed_after, outcome
from wima.runs.build import build_task
from wima.runs.own_code import is_own, split
from wima.runs.run import read_run
from wima.runs.settings import load_settings, make_settings

FILE = """
from dataclasses import dataclass

from torch import nn

import wima
from wima.data.sets.digits import digits
from wima.models import MLP


@dataclass(frozen=True, kw_only=True)
class MyProx(wima.Algorithm):
    mu: float = 0.01

    def local(self, w, server, client):
        return wima.Local(w, prox=self.mu)


@dataclass(frozen=True)
class Needy(wima.Algorithm):
    gain: float


@dataclass(frozen=True)
class MyWindow(wima.WIMA):
    def _label(self):
        return f"mine{self.window}"


class MyRate:
    def factor(self, t, rounds):
        return 1.0


class MyServer(wima.SGD):
    pass


def net(hidden=64):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def shaped(shape, classes, *, hidden=64):
    return MLP(64, hidden, classes)


def load(clients=100, seed=0):
    data = digits(clients, 0.0, seed)
    return wima.Bundle(data.train, data.x_test, data.y_test, data.classes)


def three():
    return 3


def half(shape):
    return net()


five = 5
"""
SHORT = ["rounds=4", "window=2", "engine=serial"]


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """The file, in a current folder that Python does not look in by itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])  # what is added goes again
    for name in ("things", "broken", "json_things"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "things.py").write_text(FILE)
    yield tmp_path / "things.py"
    sys.modules.pop("things", None)


@pytest.mark.parametrize(
    ("text", "name", "pairs"),
    [
        ("fedprox:mu=0.1", "fedprox", ["mu=0.1"]),
        ("my_module:Mine", "my_module:Mine", []),
        ("my.module:Mine:mu=0.1:nu=2", "my.module:Mine", ["mu=0.1", "nu=2"]),
        ("../a-b/c.py:Mine:mu=0.1", "../a-b/c.py:Mine", ["mu=0.1"]),
        ("wima:50", "wima", ["50"]),
    ],
)
def test_parts_without_a_value_belong_to_the_name(text, name, pairs):
    assert split(text) == (name, pairs)
    assert is_own(name) == (":" in name)


def test_a_copy_of_fedprox_in_a_file_gives_its_bytes(own, cli, tmp_path):
    assert cli("run", "digits", "algorithm=fedprox:mu=0.3", *SHORT, "--out", "ours")[0] == 0
    for number, name in enumerate(("things:MyProx", "things.py:MyProx", f"{own}:MyProx")):
        code, _, err = cli(
            "run", "digits", f"algorithm={name}:mu=0.3", *SHORT, "--out", f"{number}"
        )
        assert code == 0, err
        assert outcome(tmp_path / f"{number}") == outcome(tmp_path / "ours")
        assert read_run(tmp_path / f"{number}").settings.algorithm.name == name
    code, out, _ = cli("run", "digits", "algorithm=things.py:MyProx", *SHORT)
    assert code == 0 and "runs/digits-MyProx-" in out


def test_own_code_in_a_sweep_and_its_report(own, cli):
    grid = "algorithm=fedprox:mu=0.3,things.py:MyProx:mu=0.3"
    code, out, err = cli("sweep", "digits", *SHORT, "--grid", grid, "--out", "sweep", "--jobs", "1")
    assert code == 0, out + err
    paths = [p for p in sorted(Path("sweep").iterdir()) if p.is_dir()]
    assert len(paths) == 2 and outcome(paths[0]) == outcome(paths[1])
    own.unlink()  # a report needs no code
    assert cli("report", "sweep", "--out", "report")[0] == 0
    rows = [
        line for line in Path("report/report.md").read_text().splitlines() if "mu=0.3 |" in line
    ]
    assert len(rows) == 2 and rows[0].split("|")[2:] == rows[1].split("|")[2:]


def test_worker_processes_find_own_code(own, cli, tmp_path):
    named = ["algorithm=things.py:MyProx:mu=0.3", "model=things:net:hidden=64", "data=things:load"]
    named += ["schedule=things:MyRate", "server=things:MyServer:momentum=0.5", "rounds=4"]
    named += ["averagers=things:MyWindow:window=2"]
    ours = ["algorithm=fedprox:mu=0.3", "server=sgd:momentum=0.5", "rounds=4", "window=2"]
    for settings, out in ((named, "own"), (ours, "ours")):
        code, _, err = cli("run", "digits", *settings, "engine=serial", "--out", out)
        assert code == 0, err
    code, _, err = cli("run", "digits", *named, "engine=processes", "workers=2", "--out", "two")
    assert code == 0, err
    assert outcome(tmp_path / "two") == outcome(tmp_path / "own")
    theirs, expected = (read_run(tmp_path / name) for name in ("own", "ours"))
    assert theirs.curve("mine2", "accuracy") == expected.curve("wima2", "accuracy")


def test_own_functions_get_the_settings_that_they_take(own):
    settings = ["model=things.py:shaped:hidden=8", "data=things:load", "clients=12"]
    task = build_task(load_settings("digits", settings))
    assert task.data.num_clients == 12
    assert (8,) in task.layout.shapes.values()


def test_a_killed_run_of_own_code_resumes_to_the_same_bytes(own, cli, tmp_path, monkeypatch):
    settings = load_settings(
        "digits", ["algorithm=things.py:MyProx:mu=0.3", *SHORT, "checkpoint_every=2"]
    )
    killed_after(3, settings, tmp_path / "run")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    code, _, err = cli("resume", str(tmp_path / "run"))
    assert code == 2 and "there is no file things.py" in err and str(elsewhere) in err
    monkeypatch.chdir(tmp_path)
    own.write_text(FILE + "# another comment\n")
    code, out, err = cli("resume", "run")
    assert code == 0, err
    assert "has changed" not in out
    assert cli("run", "digits", "algorithm=fedprox:mu=0.3", *SHORT, "--out", "ours")[0] == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "ours")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("algorithm=things:MyProxx", "did you mean 'MyProx'?"),
        ("algorithm=things:net", "must be a class derived from wima.Algorithm, got <function net"),
        ("algorithm=things:five", "must be a class derived from wima.Algorithm, got 5"),
        ("algorithm=things:MyProx:nu=1", "Unknown hyper-parameter of things:MyProx 'nu'"),
        ("algorithm=things:Needy", "missing a required argument: 'gain'"),
        ("algorithm=nowhere:X", "there is no module 'nowhere' in"),
        ("algorithm=nowhere.py:X", "there is no file nowhere.py in"),
        ("algorithm=broken.py:X", "ZeroDivisionError: division by zero"),
        ("algorithm=json.py:X", "another module is called json"),
        ("algorithm=fedprox:mu", "expected key=value, got 'mu'"),
        ("averagers=things:MyProx", "must be a class derived from wima.Averager"),
        ("server=things:MyProx", "must be a class with methods init and update"),
        ("schedule=things:MyProx", "must be a class with factor(t, rounds)"),
        ("model=things:five", "must be a function, got 5"),
        ("model=things:three", "must return a torch.nn.Module, got 3"),
        ("model=things:half", "of (shape, classes) or without arguments, but it requires (shape)"),
        ("data=things:five", "must be a function, got 5"),
        ("data=things:three", "must return wima.Bundle"),
        ("data=things:load:size=3", "Unknown option of data things:load 'size'"),
        ("data=things:load alpha=0.1", "no parameter alpha"),
    ],
)
def test_wrong_things_are_refused_in_a_sentence(own, cli, setting, words):
    (own.parent / "broken.py").write_text("1 / 0\n")
    (own.parent / "json.py").write_text("X = 1\n")
    code, out, err = cli("run", "digits", *setting.split(), "rounds=2", "--out", "run")
    assert code == 2 and words in err and "Traceback" not in out + err
    assert not (own.parent / "run").exists()


def test_nodes_of_flower_import_nothing_that_a_server_names(own):
    pytest.importorskip("flwr")
    from wima.core.errors import UsageError
    from wima.flower.app.visit import _task

    text = make_settings({"algorithm": "things.py:MyProx"}).to_toml()
    with pytest.raises(UsageError, match=r"Flower nodes do not import"):
        _task(text, "", files=False)
    assert "things" not in sys.modules

"""Every algorithm, server optimizer and schedule can be chosen by name, and mistakes are found.

tests/golden runs each algorithm from its settings.
"""

from __future__ import annotations

import ast
import json
from dataclasses import fields
from pathlib import Path

import pytest

import wima
from tests.helpers import pseudocode
from wima import algorithms
from wima.algorithms import server_opt
from wima.runs.settings import load_settings
from wima.simulation.options import SCHEDULES

PACKAGE = Path(wima.__file__).parent
CHOICES = [
    *((f"algorithm={name}", kind()) for name, kind in algorithms.BY_NAME.items()),
    ("algorithm=fedacg:lam=0.5", wima.FedACG(lam=0.5)),
    ("server=sgd:lr=0.5", wima.SGD(lr=0.5)),
    ("server=momentum", wima.Momentum()),
    ("server=momentum:momentum=0.5:nesterov=true", wima.Momentum(momentum=0.5, nesterov=True)),
    ("server=adam:lr=0.01", wima.Adam(lr=0.01)),
    ("server=yogi:lr=0.01:v0=1e-6", wima.Yogi(lr=0.01, v0=1e-6)),
    ("server=adagrad:lr=0.01:tau_inside=true", wima.Adagrad(lr=0.01, tau_inside=True)),
    ("schedule=constant", wima.Constant()),
    ("schedule=exponential:decay=0.5", wima.Exponential(decay=0.5)),
    ("schedule=cosine:final=0.1", wima.Cosine(final=0.1)),
    ("schedule=cyclic:start=0.5:cycle=2", wima.Cyclic(start=0.5, cycle=2)),
    (
        "schedule=cyclic:start=2:phase=izmailov:cycle=2",
        wima.Cyclic(start=2, cycle=2, phase="izmailov"),
    ),
]


@pytest.mark.parametrize(("choice", "made"), CHOICES, ids=[choice for choice, _ in CHOICES])
def test_methods_are_chosen_by_name(choice, made):
    setting = choice.partition("=")[0]
    chosen = getattr(load_settings("digits", [choice]), setting)
    assert chosen.make(setting) == made


def test_all_server_optimizers_and_schedules_were_meant():
    for registry in (server_opt.BY_NAME, SCHEDULES):
        assert set(registry.values()) <= {type(made) for _, made in CHOICES}


@pytest.fixture
def records(cli):
    """Run the digits with these settings: the records of the run."""

    def run(*settings: str) -> list[dict]:
        out = f"run-{len(list(Path().iterdir()))}"
        code, _, error = cli("run", "digits", *settings, "--out", out)
        assert code == 0, error
        lines = (Path(out) / "records.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    return run


def test_a_server_optimizer_is_stacked_on_an_own_rule_if_asked(records):
    short = ["rounds=3", "algorithm=fedacg"]
    stacked = records(*short, "server=momentum", "stack_server=true")
    assert [r["metrics"] for r in stacked] != [r["metrics"] for r in records(*short)]


def test_swa_runs_with_its_cycles(records):
    run = records(
        "rounds=7", "lr=0.2", "schedule=cyclic:start=2:cycle=2", "averagers=swa:start=2:cycle=2"
    )
    assert [r["lr"] for r in run] == pytest.approx(
        [pseudocode.swa_rate(t, 0.2, start=2, cycle=2) for t in range(7)]
    )
    plain, swa = ([r["metrics"][name] for r in run] for name in ("plain", "swa-s2-c2"))
    # w^1 and w^2 themselves; w^2 until w^5 is collected after round 4; then the mean with w^7
    assert swa[:2] == plain[:2] and swa[2] == swa[3] == plain[1]
    assert swa[4] == swa[5] == plain[4] and swa[6] not in (plain[4], plain[6])


def test_the_list_has_a_line_for_each_algorithm_with_its_hyper_parameters(cli):
    code, text, _ = cli("list", "algorithms")
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert code == 0 and list(lines) == list(algorithms.BY_NAME)
    assert len(text.splitlines()) == len(algorithms.BY_NAME)
    for name, kind in algorithms.BY_NAME.items():
        for field in fields(kind):
            assert f"{field.name}={field.default!r}" in lines[name]
        assert fields(kind) or "=" not in lines[name]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["algorithm=fedprox:mu=-1"], "FedProx.mu must be a number in [0, inf), got -1."),
        (
            ["algorithm=adabest", "algorithm.beta=1"],
            "AdaBest.beta must be a number in [0, 1), got 1.",
        ),
        (["algorithm=scaffold:option=III"], "Scaffold.option must be one of I, II"),
        (["algorithm=scafold"], "did you mean 'scaffold'?"),
        (["algorithm=fedavg:mu=1"], "Unknown hyper-parameter of fedavg 'mu'"),
        (["server=adam:tau=0"], "Adam.tau must be a number in (0, inf), got 0."),
        (["server=adm"], "did you mean 'adam'?"),
        (["schedule=cyclic:start=3"], "Cyclic.start must be a round of the run, 0 ... 2, got 3."),
        (["averagers=swa:start=3"], "SWA.start must be a round of the run, 0 ... 2, got 3."),
        (["algorithm=feddyn", "server=momentum"], "FedDyn has its own server rule"),
    ],
)
def test_a_mistake_ends_with_2_before_anything_is_written(cli, tmp_path, settings, words):
    code, _, error = cli("run", "digits", "rounds=3", *settings)
    assert code == 2 and words in error and error.startswith("Error: ")
    assert not list(tmp_path.iterdir())


def statements(file: Path) -> int:
    """How many statements a file has; imports and docstrings do not count."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    code = [n for n in nodes if isinstance(n, ast.stmt) and not is_text(n)]
    return len([n for n in code if not isinstance(n, ast.Import | ast.ImportFrom)])


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_an_algorithm_fits_on_a_screen():
    others = ("base", "server_opt", "traffic", "__init__")
    files = [f for f in (PACKAGE / "algorithms").glob("*.py") if f.stem not in others]
    assert len(files) == len(algorithms.BY_NAME)
    assert {file.name: statements(file) for file in files if statements(file) > 30} == {}

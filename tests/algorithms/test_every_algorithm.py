"""Every algorithm, server optimizer and schedule runs from the command line."""

from __future__ import annotations

import ast
import json
from dataclasses import asdict, fields
from math import isfinite
from pathlib import Path

import pytest

import wima
from tests.helpers import pseudocode
from wima import algorithms
from wima.algorithms import server_opt
from wima.simulation import schedules

PACKAGE = Path(wima.__file__).parent
SHORT = ["rounds=3", "averagers=wima:window=2,ema:decay=0.5"]


@pytest.fixture
def records(cli):
    """Run the digits with these settings: the records of the run."""

    def run(*settings: str) -> list[dict]:
        out = f"run-{len(list(Path().iterdir()))}"
        code, _, error = cli("run", "digits", *settings, "--out", out)
        assert code == 0, error
        lines = (Path(out) / "records.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads((Path(out) / "status.json").read_text())["state"] == "done"
        return [json.loads(line) for line in lines]

    return run


def values(records: list[dict]) -> list[tuple]:
    """All that was measured."""
    return [tuple(m.values()) for record in records for m in record["metrics"].values()]


def cohorts(records: list[dict]) -> list[list[int]]:
    return [record["cohort"] for record in records]


def test_every_algorithm_runs_with_averagers_and_sees_the_cohorts_of_the_seed(records):
    runs = {name: records(f"algorithm={name}", *SHORT) for name in algorithms.BY_NAME}
    for name, run in runs.items():
        assert [record["t"] for record in run] == [1, 2, 3], name
        assert all(list(record["metrics"]) == ["plain", "wima2", "ema0.5"] for record in run), name
        assert all(isfinite(v) for measured in values(run) for v in measured), name
    seen = cohorts(runs["fedavg"])
    assert all(cohorts(run) == seen for run in runs.values())
    assert len({tuple(cohort) for cohort in seen}) == 3
    last = {name: values(run)[-3:] for name, run in runs.items()}
    # FedProx with its small mu may classify like FedAvg; their losses still differ.
    assert len({str(measured) for measured in last.values()}) == len(runs)


@pytest.mark.parametrize("name", ["fedavg", "mime"])
def test_another_seed_has_other_cohorts_and_the_same_seed_the_same_run(records, name):
    one, again, other = (records(f"algorithm={name}", *SHORT, f"seed={seed}") for seed in (1, 1, 2))
    assert values(one) == values(again) and cohorts(one) == cohorts(again)
    assert not any(a == b for a, b in zip(cohorts(one), cohorts(other), strict=True))


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ("sgd:lr=0.5", wima.SGD(lr=0.5)),
        ("momentum", wima.Momentum()),
        ("momentum:momentum=0.5:nesterov=true", wima.Momentum(momentum=0.5, nesterov=True)),
        ("adam:lr=0.01", wima.Adam(lr=0.01)),
        ("yogi:lr=0.01:v0=1e-6", wima.Yogi(lr=0.01, v0=1e-6)),
        ("adagrad:lr=0.01:tau_inside=true", wima.Adagrad(lr=0.01, tau_inside=True)),
    ],
)
def test_server_optimizers_are_chosen_by_name(records, choice, made):
    from wima.runs.build import build_task
    from wima.runs.settings import load_settings

    run, settings = records(f"server={choice}", *SHORT), load_settings("digits", SHORT)
    common = {"rounds": 3, "clients_per_round": settings.clients_per_round, "lr": settings.lr}
    averagers = [wima.WIMA(2), wima.EMA(0.5)]
    expected = wima.run(
        build_task(settings),
        server_opt=made,
        averagers=averagers,
        **common,
        **asdict(settings.part(wima.LocalSGD)),
    )
    assert [record["metrics"] for record in run] == [r.metrics for r in expected.records]


def test_all_server_optimizers_and_schedules_were_meant():
    assert set(server_opt.BY_NAME) == {"sgd", "momentum", "adam", "yogi", "adagrad"}
    assert set(schedules.BY_NAME) == {"constant", "exponential", "cosine", "cyclic"}


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


@pytest.mark.parametrize(
    ("choice", "schedule"),
    [
        ("constant", wima.Constant()),
        ("exponential:decay=0.5", wima.Exponential(decay=0.5)),
        ("cosine:final=0.1", wima.Cosine(final=0.1)),
        (
            "cyclic:start=0.5:cycle=2:phase=izmailov",
            wima.Cyclic(cycle=2, phase="izmailov", start=0.5),
        ),
    ],
)
def test_schedules_are_chosen_by_name(records, choice, schedule):
    run = records(f"schedule={choice}", "lr=0.2", "rounds=4", "eval_every=0")
    assert [r["lr"] for r in run] == [0.2 * schedule.factor(t, 4) for t in range(4)]


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


def test_an_optimizer_is_stacked_on_an_own_rule_if_asked(records):
    stacked = records("algorithm=fedacg", "server=momentum", "stack_server=true", *SHORT)
    assert values(stacked) != values(records("algorithm=fedacg", *SHORT))


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

"""One simulation on several ranks: the bytes of `serial`, and an end that says what happened."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch import nn

from tests.helpers.interrupted import outcome
from tests.helpers.paths import ROOT
from tests.helpers.ranks import die_in_round, free_port, ranks, wima
from wima import run
from wima.algorithms import BY_NAME
from wima.algorithms.server_opt import SGD
from wima.averaging import WIMA
from wima.core.errors import UsageError
from wima.data.sets.digits import digits
from wima.models import MLP
from wima.runs.launch import launch, resume
from wima.runs.settings import load_settings
from wima.simulation.engines.ranks import join
from wima.simulation.measures.finetune import FineTune
from wima.simulation.simulate import simulate
from wima.simulation.task import Task, make_task

OPTIONS = {"rounds": 3, "clients_per_round": 5, "lr": 0.05, "batch_size": 7, "eval_every": 2}
OPTIONS |= {"eval_last": 0, "seed": 3}
DIGITS = ["digits", "clients=30", "clients_per_round=4", "rounds=12", "checkpoint_every=2"]
LOST = "The connection between the ranks failed, so the run cannot continue: a rank exited"
TUNED = {"finetune": FineTune(steps=2, lr=0.1)}
SERIAL, DISTRIBUTED = [*DIGITS, "engine=serial"], [*DIGITS, "engine=distributed"]


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def task_of(model=plain, **options) -> Task:
    bundle, options = digits(num_clients=12, alpha=0.5), {"eval_batch_size": 64, **options}
    return make_task(model, bundle.train, (bundle.x_test, bundle.y_test), **options)


def cases() -> dict[str, dict]:
    """Every algorithm, a server with momentum, a model with statistics, faults, window=auto."""
    methods = {name: {"algorithm": kind()} for name, kind in BY_NAME.items()}
    judged = {"algorithm": BY_NAME["fedcm"](), "averagers": [WIMA("auto"), WIMA(2)]}
    return {
        **methods,
        "momentum": {"server_opt": SGD(momentum=0.9), "momentum": 0.5},
        "statistics": {"model": normed},
        "window=auto": judged,
        "clients": {"client_test": 0.2, "client_eval_every": 2, "calibration": True, **TUNED},
    }


def result(case: dict, **options) -> dict[str, object]:
    """The hash of all that a run gives, and its last model."""
    case = dict(case)
    task = task_of(case.pop("model", plain), client_test=case.pop("client_test", None))
    with simulate(task, **OPTIONS, **case, **options) as simulation:
        records = [record._replace(seconds=0.0) for record in simulation]
        total = hashlib.sha256(repr(records).encode())
        for name, w in simulation.vectors().items():
            total.update(name.encode() + w.numpy().tobytes())
        return {"rounds": len(records), "hash": total.hexdigest(), "w": simulation.w.tolist()}


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory) -> dict[str, dict]:
    """The results of all cases on two ranks, computed by one pair of processes."""
    folder = tmp_path_factory.mktemp("ranks")

    def work(rank: int) -> None:
        found = {name: result(case, engine="distributed") for name, case in cases().items()}
        (folder / f"{rank}.json").write_text(json.dumps(found))

    ended = ranks(2, work, folder)
    assert [rank.code for rank in ended] == [0, 0], ended
    silent = json.loads((folder / "1.json").read_text())
    assert {case["rounds"] for case in silent.values()} == {0}
    return json.loads((folder / "0.json").read_text())


@pytest.mark.parametrize("name", cases())
def test_two_ranks_give_the_bytes_of_serial(name, on_two_ranks):
    assert on_two_ranks[name] == result(cases()[name], engine="serial")


@pytest.mark.parametrize("count", [1, 3])
def test_the_number_of_ranks_does_not_matter(count, tmp_path):
    names = ("fedavg", "adabest")

    def work(rank: int) -> None:
        found = [result(cases()[name], engine="distributed") for name in names]
        if rank == 0:
            (tmp_path / "found.json").write_text(json.dumps(found))

    assert [rank.code for rank in ranks(count, work, tmp_path)] == [0] * count
    expected = [result(cases()[name], engine="serial") for name in names]
    assert json.loads((tmp_path / "found.json").read_text()) == expected


NAMES = {name for _, name in socket.if_nameindex()}
LOOPBACK = min(NAMES & {"lo", "lo0"}, default=None)


@pytest.mark.parametrize("case", ["one-machine", "chosen-by-the-user", "several-machines"])
def test_ranks_on_one_machine_listen_on_its_loopback_interface(case, tmp_path, monkeypatch):
    names, chosen = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), None
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1" if case == "several-machines" else "2")
    expected = [None, None] if case == "several-machines" else [LOOPBACK, LOOPBACK]
    if case == "chosen-by-the-user":
        chosen = min((n for n in NAMES if n.startswith(("eth", "en"))), default=None)
        if chosen is None:
            pytest.skip("there is no other interface")
        monkeypatch.setenv(names[0], chosen)
        expected = [chosen, LOOPBACK]

    def work(rank: int) -> None:
        join()
        found = {"env": [os.environ.get(name) for name in names], "listens": listening()}
        (tmp_path / f"{rank}.json").write_text(json.dumps(found))

    assert [rank.code for rank in ranks(2, work, tmp_path)] == [0, 0]
    for rank in (0, 1):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["env"] == expected
        if (
            case == "one-machine" and rank
        ):  # rank 0 also has the store, for which torch has no such setting
            assert set(found["listens"]) <= {"0100007F", f"{'0' * 24}01000000"}


def listening() -> list[str]:
    """The addresses on which this process listens, as the kernel writes them."""
    own = {os.readlink(link) for link in Path("/proc/self/fd").glob("*") if link.is_symlink()}
    tables = [Path("/proc/self/net") / name for name in ("tcp", "tcp6")]
    rows = [row.split() for t in tables if t.exists() for row in t.read_text().splitlines()[1:]]
    return [r[1].partition(":")[0] for r in rows if r[3] == "0A" and f"socket:[{r[9]}]" in own]


def vectors_sent(ranks: int, away: int) -> dict[str, int]:
    """The page's table: vectors that a round sends, with so many clients at ranks other than 0."""
    r = ranks - 1
    with_a_shift = dict.fromkeys(("fedcm", "feddyn", "adabest"), r + 2 * away)
    with_a_gradient = dict.fromkeys(("scaffold", "mimelite"), r + 3 * away)
    alike = {"fedavg": r + away, "fedprox": r + away, "fedacg": 2 * r + away}
    return {**alike, **with_a_shift, **with_a_gradient, "mime": 3 * r + 2 * away}


def test_a_round_sends_the_vectors_that_the_page_counts(tmp_path):
    options = {**OPTIONS, "rounds": 1, "clients_per_round": 6, "eval_every": 0, "steps": 2}
    bundle = digits(num_clients=12, alpha=None)
    task = make_task(MLP, bundle.train, (bundle.x_test, bundle.y_test))

    def work(rank: int) -> None:
        found, group = {}, join()
        for name in vectors_sent(2, 3):
            before = group.bytes
            run(task, BY_NAME[name](), engine="distributed", **options)
            found[name] = group.bytes - before
        (tmp_path / f"{rank}.json").write_text(json.dumps(found))

    assert [rank.code for rank in ranks(2, work, tmp_path)] == [0, 0]
    found, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert found == other
    assert set(BY_NAME) == set(found)
    size = 4 * len(task.init(0))
    for name, vectors in vectors_sent(2, 3).items():
        messages = found[name] - vectors * size
        assert 0 < messages < 6 * 1000, name


@pytest.mark.world
def test_torchrun_writes_the_run_that_serial_writes(tmp_path):
    path = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), "-m", "wima", "run", *DISTRIBUTED]
    around = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", str(path)], env=around, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("round 12/12") == 1  # one rank alone has a terminal
    launch(load_settings("digits", SERIAL[1:]), tmp_path / "serial")
    assert outcome(path) == outcome(tmp_path / "serial")


def test_a_killed_rank_ends_the_run_which_goes_on_with_others_to_the_same_bytes(tmp_path):
    path = tmp_path / "run"

    def begin(rank: int) -> None:
        if rank == 1:
            die_in_round(4)
        wima("run", *DISTRIBUTED, "--out", str(path))

    def go_on(rank: int) -> None:
        if rank == 2:
            die_in_round(8)
        wima("resume", str(path))

    for count, work, done in ((2, begin, 4), (3, go_on, 8)):
        before = time.monotonic()
        ended = ranks(count, work, tmp_path)
        assert time.monotonic() - before < 30
        assert [rank.code for rank in ended] == [1] * (count - 1) + [-9]  # all have ended
        status = json.loads((path / "status.json").read_text())
        assert LOST in ended[0].output
        assert f"failed after {done} of 12 rounds" in ended[0].output
        assert (status["state"], status["done"]) == ("failed", done)
        for helper in ended[1:-1]:
            assert f"Error: {LOST}" in helper.output
    assert resume(path, changes=["engine=serial"]).settings.engine == "serial"
    launch(load_settings("digits", SERIAL[1:]), tmp_path / "serial")
    assert outcome(path) == outcome(tmp_path / "serial")


def test_ranks_with_other_settings_are_named(tmp_path):
    path = tmp_path / "run"

    def work(rank: int) -> None:
        wima("run", *DISTRIBUTED, *(["lr=0.3"] if rank == 1 else ()), "--out", str(path))

    ended = ranks(3, work, tmp_path)
    assert [rank.code for rank in ended] == [2, 2, 2]
    assert all("rank 1 differs in lr: 0.3, but" in rank.output for rank in ended)
    assert not path.exists()


def test_ranks_with_other_data_are_named(tmp_path):
    def work(rank: int) -> None:
        task = task_of()
        task.data.x[rank] += rank
        with pytest.raises(UsageError, match="rank 1 differs in data: "):
            simulate(task, engine="distributed", **OPTIONS)

    assert [rank.code for rank in ranks(2, work, tmp_path)] == [0, 0]


def test_a_rank_that_cannot_start_ends_the_others(tmp_path):
    path = tmp_path / "run"
    path.mkdir()  # so rank 0 refuses to write there
    work = lambda rank: wima("run", *DISTRIBUTED, "--out", str(path))  # noqa: E731
    first, second = ranks(2, work, tmp_path)
    assert (first.code, second.code) == (2, 1)
    assert "already exists" in first.output
    assert LOST in second.output
    assert list(path.iterdir()) == []


def test_an_error_of_a_client_names_it_as_elsewhere(tmp_path):
    def work(rank: int) -> None:
        task = task_of()
        broken = task._replace(gradient=None, workspace=None)
        run(broken, engine="distributed", **OPTIONS)

    first, second = ranks(2, work, tmp_path)
    assert (first.code, second.code) == (1, 1)
    assert "RunError: round 0, client " in first.output
    assert "local training: TypeError" in first.output


def test_outside_torchrun_the_command_is_shown(cli, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    code, _, errors = cli("run", *DISTRIBUTED)
    assert code == 2
    assert "torchrun --nproc-per-node 2 -m wima run ... engine=distributed" in errors

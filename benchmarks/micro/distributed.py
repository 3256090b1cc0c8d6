"""Two ranks against two processes with shared memory, and what the ranks send.

One case plays alone: python -m benchmarks.micro.distributed <case> <workload>.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from statistics import median
from typing import Any

from benchmarks.micro import micro_result
from benchmarks.turns import FOREVER, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, load, prepare

CASES = {
    "processes": {"engine": "processes", "workers": 2},
    "gather": {"engine": "distributed"},
    "reduce": {"engine": "distributed", "collective": "reduce"},
}
WHAT = {
    "processes": "`processes`, two workers",
    "gather": "`distributed`, two ranks, gather",
    "reduce": "`distributed`, two ranks, reduce",
}
NAMES = ("digits", "femnist")
RANKS = 2


def measure(
    turns: int, names: tuple[str, ...] = NAMES, rounds: int | None = None
) -> dict[str, Any]:
    from benchmarks.drive import interleave

    rows = []
    for name in names:
        prepare(name)
        commands = {case: [sys.executable, "-m", __name__, case, name] for case in CASES}
        measured = interleave(commands, turns, rounds or WORKLOADS[name].rounds)
        rows += [_row(name, case, result) for case, result in measured.items()]
    columns = ["workload", "engine", "best, ms", "median, ms", "sent, kB", "computed, kB"]
    text = (
        f"FedAvg, {COHORT} clients per round, evaluation off; {turns} interleaved turns. Two ranks "
        "on one machine, over loopback. Sent: what ranks sent each other per round, counted where "
        "it is sent. Computed: w to the other rank, and the model of each of its clients back "
        "(reduce: one vector)."
    )
    return micro_result("distributed", "Ranks", text, [{"columns": columns, "rows": rows}])


def _row(name: str, case: str, result: dict[str, Any]) -> list[str]:
    from benchmarks.report import number

    if "failed" in result:
        return [name, WHAT[case], result["failed"], "", "", ""]
    times = [number(f(result["seconds"]) * 1e3) for f in (min, median)]
    if case == "processes":
        return [name, WHAT[case], *times, "", ""]
    sent, parameters = result["loss"]
    back = COHORT // RANKS if case == "gather" else 1
    computed = 4 * parameters * (1 + back)
    return [name, WHAT[case], *times, f"{sent / 1e3:.1f}", f"{computed / 1e3:.1f}"]


def one_case(case: str, name: str) -> None:
    """A contestant: rank 0, which starts the other rank; or one of `processes`."""
    if case == "processes" or "RANK" in os.environ:
        _play(case, name)
        return
    os.environ.update(WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=_free_port())
    command = [sys.executable, "-m", __spec__.name, case, name]
    with subprocess.Popen(command, env={**os.environ, "RANK": "1"}, stdin=subprocess.DEVNULL):
        os.environ["RANK"] = "0"
        _play(case, name)


def _play(case: str, name: str) -> None:
    turns = Turns() if os.environ.get("RANK") != "1" else None
    import numpy as np

    import wima
    from benchmarks.models import make_tuned

    workload, arrays = WORKLOADS[name], load(name)
    data = wima.FederatedData(arrays.x, arrays.y, np.arange(CLIENTS + 1) * workload.samples)
    simulation = wima.simulate(
        wima.make_task(make_tuned(name), data, arrays[2:]),
        rounds=FOREVER,
        clients_per_round=COHORT,
        lr=workload.lr,
        batch_size=workload.batch,
        last_batch="short",
        eval_every=0,
        **CASES[case],
    )
    with simulation:
        for record in simulation:
            assert turns is not None
            turns.after(lambda record=record: _traffic(case, record.t, len(simulation.w)))


def _traffic(case: str, rounds: int, parameters: int) -> tuple[float, int]:
    """Bytes per round, in place of the loss that others report."""
    if case == "processes":
        return 0, parameters
    from wima.simulation.engines.group import join

    group = join()
    return (group.sent + group.received) / rounds, parameters


def _free_port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


if __name__ == "__main__":
    play(one_case)

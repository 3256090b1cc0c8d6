"""Time per round and memory as the number of clients grows, at ten clients per round.

One case plays alone in a process: python -m benchmarks.micro.clients <clients> <algorithm>.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.micro import micro_result
from benchmarks.turns import FOREVER, Turns, play
from benchmarks.workloads import COHORT, cache

COUNTS = (100, 3_400, 100_000, 1_000_000)
ALGORITHMS = ("FedAvg", "Scaffold")
SAMPLES, BATCH = 15, 15
ROUNDS = 100  # per turn


def measure(turns: int, counts: tuple[int, ...] = COUNTS, rounds: int = ROUNDS) -> dict[str, Any]:
    from benchmarks.drive import interleave
    from benchmarks.report import number

    cases = [(count, algorithm) for algorithm in ALGORITHMS for count in counts]
    commands = {
        f"{algorithm} {count}": [sys.executable, "-m", __name__, str(count), algorithm]
        for count, algorithm in cases
    }
    measured = interleave(commands, turns, rounds)
    rows = []
    for (count, algorithm), result in zip(cases, measured.values(), strict=True):
        if "failed" in result:
            rows.append([algorithm, f"{count:,}", result["failed"], "", "", "", ""])
            continue
        times = [number(f(result["seconds"]) * 1e3) for f in (min, median)]
        memory = [f"{result[kind] / 1e6:.0f}" for kind in ("peak_bytes", "anonymous_bytes")]
        rows.append([algorithm, f"{count:,}", *times, *memory, f"{result['startup']:.1f}"])
    columns = ["algorithm", "clients", "best, ms", "median, ms", "memory, MB"]
    columns += ["without files, MB", "start-up, s"]
    text = (
        f"MLP 64-64-10, {COHORT} clients per round with {SAMPLES} examples each, engine serial, "
        f"data mapped from disk; {turns} interleaved turns of {rounds} rounds. Resident memory, "
        f"with and without pages of files, after {turns * rounds + 1:,} rounds: SCAFFOLD keeps "
        "19 kB for each visited client."
    )
    return micro_result("clients", "Clients", text, [{"columns": columns, "rows": rows}])


def one_case(clients: str, algorithm: str) -> None:
    """A contestant: plays rounds with so many clients."""
    turns = Turns()
    import numpy as np

    import wima
    from wima.models import MLP

    count = int(clients)
    x, y = _mapped(count)
    data = wima.FederatedData(x, y, np.arange(count + 1) * SAMPLES)
    task = wima.make_task(MLP, data, (np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64)))
    simulation = wima.simulate(
        task,
        getattr(wima, algorithm)(),
        rounds=FOREVER,
        clients_per_round=COHORT,
        lr=0.1,
        batch_size=BATCH,
        eval_every=0,
        engine="serial",
    )
    with simulation:
        for _ in simulation:
            turns.after(lambda: None)


def _mapped(clients: int) -> tuple[Any, Any]:
    """Examples and labels in sparse files: a million clients take no room on the disk.

    All are zero, which changes nothing about the time that a step takes.
    """
    import numpy as np

    from wima.data.mapped import open_mapped

    def mapped(name: str, shape: tuple[int, ...], dtype: str) -> Any:
        path: Path = folder / f"{name}.npy"
        if not path.exists():
            np.lib.format.open_memmap(path, "w+", dtype, shape).flush()
        return open_mapped(path)

    folder = cache() / "data" / f"clients-{clients}x{SAMPLES}"
    folder.mkdir(parents=True, exist_ok=True)
    rows = clients * SAMPLES
    return mapped("x", (rows, 1, 8, 8), "float32"), mapped("y", (rows,), "int64")


if __name__ == "__main__":
    play(one_case)

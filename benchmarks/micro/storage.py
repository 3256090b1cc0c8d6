"""What it costs to lose nothing: checkpoints, clients' memory in files, past models in files.

One case runs alone in a process, to measure its memory: python -m benchmarks.micro.storage <case>.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.drive import ROOT
from benchmarks.micro import micro_result
from benchmarks.report import number
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, load, prepare

EVERY = 20  # rounds between checkpoints
WINDOW, PARAMETERS = 370, 4_821_740  # MobileNetV2 on Landmarks
VISITS, MANY = 50, 3_400
BUDGET = 1e9


def measure(turns: int) -> dict[str, Any]:
    """Each case once; turns do not matter."""
    prepare("femnist")
    rows = [[what, *_alone(case)] for case, what in WHAT.items()]
    columns = ["what", "time", "peak memory, MB", "in files, MB"]
    text = "Each case once, in a separate process, one thread; files in the temporary folder."
    table = {"columns": columns, "rows": rows}
    return micro_result("storage", "Nothing is lost", text, [table])


def _alone(case: str) -> list[str]:
    command = [sys.executable, "-m", __name__, case]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return [answer["time"], f"{answer['peak'] / 1e6:.0f}", f"{answer['files'] / 1e6:.0f}"]


def checkpoints(folder: Path) -> str:
    """Rounds of FEMNIST with a window of 100, and a checkpoint."""
    import numpy as np

    import wima
    from benchmarks.models import make_tuned
    from wima.runs.checkpoint import save
    from wima.storage.segments import Segments

    workload, arrays = WORKLOADS["femnist"], load("femnist")
    data = wima.FederatedData(arrays.x, arrays.y, np.arange(CLIENTS + 1) * workload.samples)
    task = wima.make_task(make_tuned("femnist"), data, arrays[2:])
    options = {"clients_per_round": COHORT, "lr": workload.lr, "batch_size": workload.batch}
    options |= {"rounds": 2 * EVERY, "eval_every": 0, "engine": "processes"}
    rounds, saving, store = [], [], Segments(folder)
    with wima.simulate(task, averagers=[wima.WIMA(100)], **options) as simulation:
        for record in simulation:
            rounds.append(record.seconds)
            if record.t % EVERY == 0:
                begin = time.perf_counter()
                save(simulation, store, {}, {})
                saving.append(time.perf_counter() - begin)
    share = 100 * max(saving) / sum(rounds[-EVERY:])
    return f"{number(max(saving))} s per checkpoint, {share:.2f} % of {EVERY} rounds"


def clients(folder: Path) -> str:
    """SCAFFOLD with 3,400 clients and 1.2 M parameters, a GB of their memory in memory."""
    import numpy as np

    import wima
    from wima.models import FemnistCNN
    from wima.storage.segments import Segments, Storage

    x = np.zeros((MANY, 1, 28, 28), np.float32)
    y = np.arange(MANY) % 62
    data = wima.FederatedData(x, y, np.arange(MANY + 1))
    task = wima.make_task(FemnistCNN, data, (x[:1], y[:1]))
    storage = Storage(Segments(folder), client_bytes=BUDGET)
    options = {"rounds": VISITS, "clients_per_round": 10, "lr": 0.01, "eval_every": 0}
    with wima.simulate(
        task, wima.Scaffold(), storage=storage, engine="serial", **options
    ) as simulation:
        seconds = [record.seconds for record in simulation]
    return f"{number(median(seconds))} s per round (median), {number(max(seconds))} s at most"


def window(folder: Path) -> str:
    """Past models of 4.8 M parameters in files, W = 370."""
    import torch

    from wima.averaging import WIMA, Averages
    from wima.storage.segments import Segments

    torch.set_num_threads(1)
    w, store = torch.randn(PARAMETERS), Segments(folder)
    watch = Averages({"wima": WIMA(WINDOW)}, w, mapped=store)
    seconds = []
    for _ in range(WINDOW + 30):
        begin = time.perf_counter()
        watch.update(w)
        seconds.append(time.perf_counter() - begin)
        if watch.ring.count % 100 == 0:
            store.keep(watch.ring.save(store, "ring"))
    full = seconds[WINDOW:]
    return f"{number(sum(full) / len(full) * 1e3)} ms per update (mean of the last {len(full)})"


WHAT = {
    "checkpoints": f"checkpoint every {EVERY} rounds, FEMNIST CNN, W = 100",
    "clients": f"SCAFFOLD, {MANY:,} clients x 1.2 M parameters, {VISITS} rounds, 1 GB in memory",
    "window": f"W = {WINDOW}, 4.8 M parameters, past models in files",
}


def main(case: str) -> None:
    cases = {"checkpoints": checkpoints, "clients": clients, "window": window}
    with tempfile.TemporaryDirectory() as name:
        told = cases[case](Path(name))
        files = sum(path.stat().st_size for path in Path(name).iterdir())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"time": told, "peak": peak, "files": files}))


if __name__ == "__main__":
    main(sys.argv[1])

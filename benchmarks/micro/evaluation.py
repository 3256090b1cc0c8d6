"""What it costs to evaluate plain and WIMA in every round, against the bare forward passes.

One case plays alone: python -m benchmarks.micro.evaluation <off | on | forward1 | forward2>.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from typing import Any

from benchmarks.micro import micro_result
from benchmarks.turns import FOREVER, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, load, prepare

IMAGES, BATCH = 2000, 500
ROUNDS = 3  # per turn
WHAT = {
    "off": "rounds without evaluation",
    "on": "rounds with plain and WIMA evaluated",
    "forward1": "the forward passes alone, one process",
    "forward2": "the forward passes alone, two processes, a model each",
}


def measure(turns: int, rounds: int = ROUNDS) -> dict[str, Any]:
    from benchmarks.drive import interleave
    from benchmarks.report import number

    prepare("femnist")
    commands = {case: [sys.executable, "-m", __name__, case] for case in WHAT}
    measured = interleave(commands, turns, rounds)
    failed = {case: r["failed"] for case, r in measured.items() if "failed" in r}
    rows = [[WHAT[case], reason, ""] for case, reason in failed.items()]
    seconds = {case: r["seconds"] for case, r in measured.items() if case not in failed}
    rows += [[WHAT[case], number(min(s)), number(median(s))] for case, s in seconds.items()]
    if not failed:
        added = [on - off for on, off in zip(seconds["on"], seconds["off"], strict=True)]
        rows.append(
            ["added by evaluation (paired by turn)", number(min(added)), number(median(added))]
        )
        for case in ("forward1", "forward2"):
            ratio = median(added) / median(seconds[case])
            rows.append([f"added, over {WHAT[case]}", "", f"{ratio:.2f} x"])
    text = (
        f"FEMNIST CNN, engine auto, {COHORT} clients per round; plain and wima100 on {IMAGES:,} "
        f"test images; {turns} interleaved turns of {rounds} rounds."
    )
    table = {"columns": ["what, seconds per round", "best", "median"], "rows": rows}
    return micro_result("evaluation", "Evaluation", text, [table])


def one_case(case: str) -> None:
    turns = Turns()
    if case.startswith("forward"):
        _forward(turns, processes=int(case[-1]))
    else:
        _rounds(turns, eval_every=1 if case == "on" else 0)


def _rounds(turns: Turns, eval_every: int) -> None:
    import numpy as np

    import wima
    from wima.models import FemnistCNN

    workload, arrays = WORKLOADS["femnist"], load("femnist")
    data = wima.FederatedData(arrays.x, arrays.y, np.arange(CLIENTS + 1) * workload.samples)
    test = (arrays.x[:IMAGES], arrays.y[:IMAGES])
    simulation = wima.simulate(
        wima.make_task(FemnistCNN, data, test),
        averagers=[wima.WIMA(100)],
        rounds=FOREVER,
        clients_per_round=COHORT,
        lr=workload.lr,
        batch_size=workload.batch,
        eval_every=eval_every,
    )
    with simulation:
        for _ in simulation:
            turns.after(lambda: None)


def _forward(turns: Turns, processes: int) -> None:
    """Both models' forward passes; with two processes, each has one of the models."""
    command = [sys.executable, "-m", __spec__.name, "helper"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    passes = _passes()
    with subprocess.Popen(command, **pipes) as helper:
        while True:
            if processes == 2:
                print("go", file=helper.stdin, flush=True)
                passes()
                helper.stdout.readline()
            else:
                passes()
                passes()
            turns.after(lambda: None)


def _help_out() -> None:
    passes = _passes()
    for _ in sys.stdin:
        passes()
        print("done", flush=True)


def _passes() -> Any:
    import torch

    from wima.models import FemnistCNN

    torch.set_num_threads(1)
    model, x = FemnistCNN().eval(), torch.from_numpy(load("femnist").x[:IMAGES])

    @torch.inference_mode()
    def passes() -> None:
        for batch in x.split(BATCH):
            model(batch)

    return passes


if __name__ == "__main__":
    if sys.argv[1:] == ["helper"]:
        _help_out()
    else:
        play(one_case)

"""The floor: the SGD steps of a round, split over two processes with one thread each.

Nothing else happens: no sampling, no copies of the model, no mean, no messages within a turn.
Freed memory is kept, as wima's engines keep it.
"""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.turns import Turns, play
from benchmarks.workloads import COHORT, WORKLOADS, load

PROCESSES = 2


class Steps:
    """One process's share of the steps: `rounds(n)` does it n times over."""

    def __init__(self, name: str, half: int) -> None:
        import torch

        from benchmarks.models import evaluate, evaluation_batches, make_model, train
        from wima.core.machine import keep_freed_memory

        torch.set_num_threads(1)
        keep_freed_memory()
        workload, data, model = WORKLOADS[name], load(name), make_model(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=workload.lr)
        clients = [
            list(
                zip(
                    *(torch.from_numpy(a).split(workload.batch) for a in data.client(i)),
                    strict=True,
                )
            )
            for i in range(half, COHORT, PROCESSES)
        ]

        test = evaluation_batches(data)[half::PROCESSES]

        def one_round(evaluating: bool) -> None:
            for batches in clients:
                train(model, batches, optimizer)
            if evaluating and test:
                evaluate(model, test)

        self.one_round = one_round

    def rounds(self, count: int, evaluating: bool) -> None:
        for _ in range(count):
            self.one_round(evaluating)


def main(name: str) -> None:
    turns = Turns()
    command = [sys.executable, "-m", "benchmarks.peers.bare", name, "helper"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as helper:
        steps = Steps(name, 0)
        while True:
            turn = turns.left, turns.evaluate
            print(json.dumps(turn), file=helper.stdin, flush=True)
            steps.rounds(*turn)
            helper.stdout.readline()
            turns.after(lambda: None, turns.left)


def help_out(name: str) -> None:
    """The other process: reads how many rounds, answers when they are done."""
    steps = Steps(name, 1)
    for line in sys.stdin:
        steps.rounds(*json.loads(line))
        print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[2:] == ["helper"]:
        help_out(sys.argv[1])
    else:
        play(main)

"""wima itself: python -m benchmarks.peers.ours <workload> <engine>."""

from __future__ import annotations

from benchmarks.turns import FOREVER, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, WORKLOADS, load


def main(name: str, engine: str) -> None:
    turns = Turns()
    import numpy as np

    import wima
    from benchmarks.models import make_tuned
    from wima.task.objectives import objective

    workload, arrays = WORKLOADS[name], load(name)
    data = wima.FederatedData(arrays.x, arrays.y, np.arange(CLIENTS + 1) * workload.samples)
    loss, metrics = objective("characters" if workload.sequences else "classes")
    task = wima.make_task(make_tuned(name), data, arrays[2:], loss=loss, metrics=metrics)
    simulation = wima.simulate(
        task,
        wima.FedAvg(),
        rounds=FOREVER,
        clients_per_round=COHORT,
        lr=workload.lr,
        batch_size=workload.batch,
        last_batch="short",
        eval_every=0,
        engine=engine,
    )
    with simulation:
        for _ in simulation:
            turns.after(lambda: task.evaluate(simulation.w)["loss"])


if __name__ == "__main__":
    play(main)

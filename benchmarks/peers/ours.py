"""wima itself: python -m benchmarks.peers.ours <workload> <engine>."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.turns import FOREVER, Turns, play
from benchmarks.workloads import CLIENTS, COHORT, EVALUATION_BATCH, WORKLOADS, load


def main(name: str, engine: str) -> None:
    turns = Turns()
    import numpy as np

    import wima
    from benchmarks.models import make_tuned
    from wima.simulation.measures.base import objective

    workload, arrays = WORKLOADS[name], load(name)
    data = wima.FederatedData(arrays.x, arrays.y, np.arange(CLIENTS + 1) * workload.samples)
    loss, metrics = objective("characters" if workload.sequences else "classes")
    about = {"loss": loss, "metrics": metrics, "eval_batch_size": EVALUATION_BATCH}
    task = wima.make_task(make_tuned(name), data, arrays.test, **about)
    check = wima.make_task(make_tuned(name), data, (arrays.x_check, arrays.y_check), **about)
    simulation = wima.simulate(
        task,
        wima.FedAvg(),
        rounds=FOREVER,
        clients_per_round=COHORT,
        lr=workload.lr,
        batch_size=workload.batch,
        last_batch="short",
        eval_every=0,
        eval_last=0,
        engine=engine,
    )
    with simulation:
        for record in simulation:
            if bool(record.metrics) != bool(simulation.measures.options.eval_every):
                raise RuntimeError("wima did not evaluate as it was asked to")
            turns.after(lambda: check.evaluate(simulation.w)["loss"])
            asked = replace(simulation.measures.options, eval_every=int(turns.evaluate))
            simulation.measures.options = asked
            simulation.rounds = simulation.t + turns.left  # begin no work of the next turn


if __name__ == "__main__":
    play(main)

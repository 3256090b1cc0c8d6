"""What Flower's machinery costs per round: our grid beside Flower's simulation engine.

Clients send back the model that they got, so that a round is messages and nothing else.  One case
plays alone in a process and waits for its turns: python -m benchmarks.micro.flower <case> <cohort>.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from statistics import median
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from benchmarks.micro import micro_result
from benchmarks.report import number
from benchmarks.turns import FOREVER, Over, Turns, play

NODES, COHORTS, ROUNDS = 100, (10, 100), 10
PARAMETERS = 100_000
CASES = {
    "one": "wima, in one process",
    "two": "wima, two workers",
    "flower": "Flower's simulation engine, two actors",
}


def measure(turns: int, rounds: int = ROUNDS) -> dict[str, Any]:
    from benchmarks.drive import interleave

    script = [sys.executable, "-m", "benchmarks.micro.flower"]
    pairs = [(case, cohort) for cohort in COHORTS for case in CASES]
    commands = {f"{case} {cohort}": [*script, case, str(cohort)] for case, cohort in pairs}
    found = interleave(commands, turns, rounds, warm_up=False)
    rows = [[CASES[case], cohort, *_times(found[f"{case} {cohort}"])] for case, cohort in pairs]
    columns = ["who runs the nodes", "nodes per round", "best, ms per round", "median"]
    text = (
        f"FedAvg over {NODES} nodes, with a model of {PARAMETERS:,} float32 numbers that clients "
        "send back unchanged, so only Flower's strategy and the messages take time. "
        f"{turns} interleaved turns of {rounds} rounds."
    )
    table = {"columns": columns, "rows": rows}
    return micro_result("flower", "Flower apps on our processes", text, [table])


def _times(result: dict[str, Any]) -> list[str]:
    if "failed" in result:
        return [result["failed"], ""]
    return [number(1e3 * take(result["seconds"])) for take in (min, median)]


def main(case: str, cohort: str) -> None:
    turns = Turns()
    import numpy as np
    from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    client, server = ClientApp(), ServerApp()

    @client.train()
    def echo(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1})
        content = {"arrays": message.content["arrays"], "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        def after_round(t: int, arrays: ArrayRecord) -> None:
            if t > 0:  # also called before the first round
                turns.after(lambda: float(np.abs(arrays["w"].numpy()).sum()))

        share = {"fraction_train": int(cohort) / NODES, "fraction_evaluate": 0.0}
        strategy = FedAvg(**share, min_available_nodes=NODES)
        model = ArrayRecord({"w": Array(np.ones(PARAMETERS, np.float32))})
        with suppress(Over):  # to return from here is how a Flower simulation ends
            strategy.start(grid, model, FOREVER, evaluate_fn=after_round)

    if case == "flower":
        from flwr.simulation import run_simulation

        resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
        run_simulation(server, client, num_supernodes=NODES, backend_config=resources)
    else:
        from wima.flower import run_flower

        run_flower(server, client, nodes=NODES, workers={"one": 1, "two": 2}[case])


if __name__ == "__main__":
    play(main)

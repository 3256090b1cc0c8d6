"""What metrics of each client and calibration cost, against pooled metrics of the same examples."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from benchmarks.micro import micro_result

IMAGES, EACH = 2048, 16  # test images, and how many of them a client has: as many as FEMNIST's
CASES = {"pooled metrics": (False, False), "and of each client": (True, False)}
CASES |= {"and calibration": (False, True), "and both": (True, True)}


def measure(turns: int, rounds: int = 2) -> dict[str, Any]:
    from benchmarks.report import number

    seconds: dict[str, list[float]] = {case: [] for case in CASES}
    passes = _passes()
    for turn in range(turns + 1):
        for case, detail in CASES.items():
            begin = time.perf_counter()
            for _ in range(rounds):
                passes(detail)
            if turn:  # the first warms up
                seconds[case].append((time.perf_counter() - begin) / rounds)
    base = seconds["pooled metrics"]
    rows = []
    for case, found in seconds.items():
        ratios = sorted(a / b for a, b in zip(found, base, strict=True))
        spread = f"{median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        rows.append([case, number(median(found)), spread])
    text = (
        f"FEMNIST CNN, plain and one average on {IMAGES:,} images, {EACH} per client; one thread; "
        f"{turns} interleaved turns of {rounds} passes. Ratio: to pooled metrics, paired by turn."
    )
    columns = ["what", "seconds per pass, median", "ratio, median (range)"]
    return micro_result("detail", "Metrics of clients", text, [{"columns": columns, "rows": rows}])


def _passes() -> Any:
    import numpy as np
    import torch

    import wima
    from wima.models import FemnistCNN
    from wima.simulation.measures.evaluation import Detail, Evaluation

    torch.set_num_threads(1)
    random, clients = np.random.default_rng(0), np.arange(IMAGES) // EACH
    x = random.random((IMAGES, 1, 28, 28), dtype=np.float32)
    y = random.integers(62, size=IMAGES)
    data = wima.FederatedData.from_arrays(x, y, clients)
    task = wima.make_task(FemnistCNN, data, (x, y), test_clients=clients)
    evaluation, models = task.evaluate, [task.init(seed) for seed in (0, 1)]
    assert isinstance(evaluation, Evaluation)

    def passes(detail: tuple[bool, bool]) -> None:
        asked = Detail(*detail)
        pieces = range(evaluation.pieces(asked))
        evaluation.combine([evaluation.piece(k, models, asked) for k in pieces])

    return passes

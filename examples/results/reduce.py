"""Reduce the records of finished runs to what reports read: a tenth of the size.

    python examples/results/reduce.py docs/results/auto docs/results/cpu

Changes every run below the given folders.  What remains of `records.jsonl`:

- the evaluated rounds and the last one, and those in which the window of an average that chooses
  it (`window=auto`) bends: lines between them, on a log scale, show all others within 3 %;
- accuracies as recorded; other metrics to four digits, unless the run measured calibration, whose
  tables show them;
- of clients, calibration, fine-tuning and privacy the newest entry, which tables show;
- bytes in the first record and in evaluated rounds: those since the last record that has any.

Cohorts are empty, and `times.jsonl` has the sum of all seconds.  `status.json` has the checksum of
the reduced records; `full` in it has those of the full records and of the models, which the
`command` in `environment.json` makes again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

from wima.runs.record import KEYS, RECORDS, TIMES
from wima.storage.files import digest, replace_text

DIGITS = 4
NEAR = 0.03
AUTO = "auto"  # in the names of averages that choose their window
NEWEST = (*KEYS, "privacy")
NOTHING = {"down": 0, "up": 0}  # bytes
Record = dict[str, Any]


def reduced(records: list[Record]) -> list[Record]:
    """The records that stay, each with what stays of it."""
    exact = any("calibration" in record for record in records)
    full = [r["t"] for r in records if r["metrics"] or r in (records[0], records[-1])]
    bends = {t for model in _names(records) for t in _bends(records, model, full)}
    newest = {key: r["t"] for r in records for key in NEWEST if key in r}
    kept, sent = [], NOTHING
    for record in records:
        t, windows = record["t"], record.get("windows", {})
        sent = {way: sent[way] + record.get("bytes", NOTHING)[way] for way in NOTHING}
        short = {"t": t, "cohort": [], "lr": record["lr"], "metrics": {}}
        if t in full:
            short["metrics"] = {
                model: {name: _short(name, value, exact) for name, value in metrics.items()}
                for model, metrics in record["metrics"].items()
            }
            short |= {"windows": windows} if windows else {}
            if "bytes" in record:
                short["bytes"], sent = sent, NOTHING
            kept.append(short | {key: record[key] for key in newest if newest[key] == t})
        elif t in bends:
            kept.append(short | {"windows": {m: n for m, n in windows.items() if AUTO in m}})
    return kept


def _names(records: list[Record]) -> set[str]:
    """The averages that choose their window."""
    return {model for r in records for model in r.get("windows", {}) if AUTO in model}


def _bends(records: list[Record], model: str, full: list[int]) -> Iterator[int]:
    """The rounds besides `full` between which an average's window is nearly straight."""
    points = [(record["t"], log(record["windows"][model])) for record in records]
    stretches = [(s - 1, u - 1) for s, u in pairwise(full)]
    while stretches:
        begin, end = stretches.pop()
        (s, m), (u, o) = points[begin], points[end]
        off = [abs(n - m - (o - m) * (t - s) / (u - s)) for t, n in points[begin:end]]
        if max(off) > NEAR:
            middle = begin + off.index(max(off))
            stretches += [(begin, middle), (middle, end)]
            yield points[middle][0]


def _short(name: str, value: float | None, exact: bool) -> float | None:
    return value if exact or value is None or "acc" in name else float(f"{value:.{DIGITS}g}")


def reduce(run: Path) -> None:
    """Reduce the records of a run's folder."""
    status = json.loads((run / "status.json").read_text(encoding="utf-8"))
    assert status["state"] in ("done", "diverged"), f"{run} is {status['state']}"
    assert "full" not in status, f"{run} is reduced already"
    status["full"] = {RECORDS: digest(run / RECORDS), **status.get("sums", {})}
    records, times = (
        [json.loads(line) for line in (run / name).read_text(encoding="utf-8").splitlines()]
        for name in (RECORDS, TIMES)
    )
    seconds = {"t": records[-1]["t"], "seconds": sum(time["seconds"] for time in times)}
    for name, lines in ((RECORDS, reduced(records)), (TIMES, [seconds])):
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        replace_text(run / name, text)
    status["sums"] = {RECORDS: digest(run / RECORDS)}
    replace_text(run / "status.json", json.dumps(status, indent=2) + "\n")


if __name__ == "__main__":
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).rglob(RECORDS)):
            reduce(path.parent)

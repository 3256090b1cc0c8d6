"""Finds the best average of saved checkpoints, with a confidence interval of its gain.

Every candidate is evaluated as if training had ended at each of the last m checkpoints.  Its gain
at an end point is its metric there minus that of the plain checkpoint there: the two share the test
set and the state of training, so the difference is less noisy than either.  From the m gains comes
their mean with a t-interval.  The intervals hold for all k candidates at once with 95 %
(Bonferroni: each has the level 1 - 0.05/k).  So the best of many is not called a gain for being the
luckiest.  Gains of neighbouring end points may be correlated: from 30 end points on, intervals are
widened for that, as in reports; with fewer, gains are taken as independent.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from wima.core.checks import check_count
from wima.core.errors import UsageError, check
from wima.core.statistics import LEAST, RISK, of_series, student_margin
from wima.saved.mean import Decay, Rule, Window, average_files
from wima.saved.read import INDEX

T = TypeVar("T")
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)


class Row(NamedTuple):
    """A candidate, and its metric at every end point."""

    rule: Rule
    values: list[float]
    gain: float = 0.0  # mean over end points; positive is better
    margin: float = 0.0  # half the interval of the gain; NaN with one end point

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """From end point to end point."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0


def default_windows(files: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... and all files."""
    steps = [digit * 10**power for power in range(len(str(files))) for digit in (1, 2, 5)]
    return [*(w for w in steps if w < files), files]


def default_decays(files: int) -> list[float]:
    """Those whose memory, 1 / (1 - decay), is filled by the files."""
    return [decay for decay in DECAYS if round(1 / (1 - decay)) <= files]


def candidates(files: int, windows: str | None, decays: str | None) -> list[Rule]:
    """Plain, then windows and EMAs, from lists of numbers with commas, or the usual ones."""
    sizes = default_windows(files) if windows is None else _numbers("--windows", windows, int)
    rates = default_decays(files) if decays is None else _numbers("--decays", decays, float)
    rules: list[Rule] = [Window(1), *map(Window, sizes), *map(Decay, rates)]
    return list(dict.fromkeys(rules))


def _numbers(name: str, text: str, kind: Callable[[str], T]) -> list[T]:
    try:
        return [kind(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise UsageError(f"{name} must be numbers with commas between, got {text!r}.") from None


def end_points(files: int, ends: int, apart: int = 1) -> list[int]:
    """How many files there were at each end point, the newest first; at most half of the files."""
    check_count("--ends", ends)
    check_count("--apart", apart)
    return [files - n * apart for n in range(ends) if n == 0 or n * apart <= files // 2]


def advise(
    files: Sequence[Path],
    evaluate: Callable[[Path], float],
    rules: Sequence[Rule],
    ends: Sequence[int],
    minimize: bool = False,
    key: str | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Row]:
    """Evaluate every candidate at every end point.  rules: plain, `Window(1)`, comes first."""
    check(len(files) > 1, f"Expected at least two checkpoints to compare, got {len(files)}.")
    known: dict[tuple[object, ...], float] = {}
    with tempfile.TemporaryDirectory(prefix="wima-advise-") as folder:

        def value(rule: Rule, end: int) -> float:
            used = tuple(rule.newest(files[:end]))
            same = (used, rule if isinstance(rule, Decay) else rule.shape)
            if same not in known:
                known[same] = _try(used, rule, Path(folder), evaluate, key)
            return known[same]

        return try_all(value, rules, ends, minimize, progress)


def try_all(
    value: Callable[[Rule, int], float],
    rules: Sequence[Rule],
    ends: Sequence[int],
    minimize: bool,
    progress: Callable[[float], None],
) -> list[Row]:
    """Every candidate at every end point.  value: the metric of one at one."""
    values: dict[Rule, list[float]] = {rule: [] for rule in rules}
    for done, end in enumerate(ends):
        for n, rule in enumerate(rules):
            values[rule].append(value(rule, end))
            progress((done + (n + 1) / len(rules)) / len(ends))
    return compare(values, minimize)


def _try(
    files: Sequence[Path],
    rule: Rule,
    folder: Path,
    evaluate: Callable[[Path], float],
    key: str | None,
) -> float:
    """The metric of one candidate, which is written, evaluated and removed."""
    ending = ".safetensors" if files[-1].suffix == INDEX else files[-1].suffix
    candidate = folder / "candidate" / f"{files[-1].stem}{ending}"
    candidate.parent.mkdir()
    try:
        average_files(files, candidate, rule, key=key)
        return evaluate(candidate)
    finally:
        shutil.rmtree(candidate.parent)


def compare(values: dict[Rule, list[float]], minimize: bool) -> list[Row]:
    """Gains over the first candidate, with intervals that hold for all at once."""
    plain = next(iter(values.values()))
    rows = [Row(rule, own) for rule, own in values.items()]
    for n, row in enumerate(rows[1:], 1):
        gains = (np.array(row.values) - plain) * (-1 if minimize else 1)
        margin = _margin(gains, RISK / (len(rows) - 1))
        rows[n] = row._replace(gain=float(gains.mean()), margin=margin)
    return rows


def _margin(gains: np.ndarray, risk: float = RISK) -> float:
    """Half the interval of the mean gain; a correlation cannot be told from few end points."""
    many = len(gains) >= LEAST
    return of_series(gains).margin(risk) if many else student_margin(gains, risk)


def best_of(rows: Sequence[Row]) -> Row:
    """The candidate with the largest mean gain; plain if no other has one."""
    return max(rows, key=lambda row: row.gain)


def verdict(rows: Sequence[Row], command: str = "wima average") -> list[str]:
    """What follows from the rows, in words.  command: what writes an average."""
    best, ends = best_of(rows), len(rows[0].values)
    if best is rows[0]:
        return ["Averaging does not help here: no candidate is better than the plain model."]
    gain = f"{best.rule.name} is best: {best.mean:.5g}, against {rows[0].mean:.5g} of plain"
    if ends == 1:
        return [f"{gain}.", "One end point: nothing is known of the uncertainty; use --ends 5."]
    summary = f"{gain}; gain {best.gain:.3g} ± {best.margin:.2g} over {ends} end points."
    if best.gain <= best.margin:
        noise = "That is within the noise: it is not shown that averaging helps here."
        return [summary, f"{noise} More end points tell more: --ends {2 * ends}."]
    helps = f"Averaging helps here: {command} {best.rule.option}."
    return [summary, helps, *_equals(rows, best)]


def _equals(rows: Sequence[Row], best: Row) -> list[str]:
    """The other candidates that are indistinguishable from the best one."""
    close = [row for row in rows[1:] if row is not best and _overlaps(row, best)]
    names = ", ".join(row.rule.name for row in close)
    return [f"Indistinguishable from the best with these end points: {names}."] if names else []


def _overlaps(row: Row, best: Row) -> bool:
    differences = np.array(best.values) - row.values
    return bool(abs(differences.mean()) <= _margin(differences))

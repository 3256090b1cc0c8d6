"""Finds the best average of saved checkpoints, with a confidence interval for its gain.

Every candidate is evaluated as if training had ended at each of the last m checkpoints.  Its gain
at an end point is its metric minus that of the plain checkpoint there.  Both share the test set and
the state of training, so the difference is less noisy than either.  The m gains give a mean and a
t-interval.  The intervals cover all k candidates simultaneously with 95 % confidence (Bonferroni:
each has level 1 - 0.05/k), so the best of many does not count as a gain just by luck.  Gains at
neighbouring end points may be correlated: with 30 or more end points, intervals are widened to
account for that, as in reports; with fewer, gains are treated as independent.
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
from wima.model_files.mean import Decay, Rule, Window, average_files
from wima.model_files.read import INDEX

T = TypeVar("T")
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)


class Row(NamedTuple):
    """A candidate and its metric at every end point."""

    rule: Rule
    values: list[float]
    gain: float = 0.0  # mean over end points; positive is better
    margin: float = 0.0  # half-width of the gain's interval; NaN with one end point

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float:
        """Standard deviation over end points."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else 0.0


def default_windows(files: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... and all files."""
    steps = [digit * 10**power for power in range(len(str(files))) for digit in (1, 2, 5)]
    return [*(w for w in steps if w < files), files]


def default_decays(files: int) -> list[float]:
    """Decays whose memory, 1 / (1 - decay), is covered by the files."""
    return [decay for decay in DECAYS if round(1 / (1 - decay)) <= files]


def candidates(files: int, windows: str | None, decays: str | None) -> list[Rule]:
    """Plain, then windows and EMAs, from comma-separated lists or the defaults."""
    sizes = default_windows(files) if windows is None else _numbers("--windows", windows, int)
    rates = default_decays(files) if decays is None else _numbers("--decays", decays, float)
    rules: list[Rule] = [Window(1), *map(Window, sizes), *map(Decay, rates)]
    return list(dict.fromkeys(rules))


def _numbers(name: str, text: str, kind: Callable[[str], T]) -> list[T]:
    try:
        return [kind(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise UsageError(f"{name} must be comma-separated numbers, got {text!r}.") from None


def end_points(files: int, ends: int, apart: int = 1) -> list[int]:
    """The number of files at each end point, newest first; goes back at most half of the files."""
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
    """Evaluate every candidate at every end point.  rules: the first is plain, `Window(1)`."""
    check(len(files) > 1, f"Expected at least two checkpoints to compare, got {len(files)}.")
    known: dict[tuple[object, ...], float] = {}
    with tempfile.TemporaryDirectory(prefix="wima-advise-") as folder:

        def value(rule: Rule, end: int) -> float:
            used = tuple(rule.newest(files[:end]))
            same = (used, rule if isinstance(rule, Decay) else None)  # windows may hold all files
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
    """Compare every candidate at every end point.  value: the metric, given both."""
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
    """Write a candidate, evaluate it and remove it; returns its metric."""
    ending = ".safetensors" if files[-1].suffix == INDEX else files[-1].suffix
    candidate = folder / "candidate" / f"{files[-1].stem}{ending}"
    candidate.parent.mkdir()
    try:
        average_files(files, candidate, rule, key=key)
        return evaluate(candidate)
    finally:
        shutil.rmtree(candidate.parent)


def compare(values: dict[Rule, list[float]], minimize: bool) -> list[Row]:
    """Gains over the first candidate, with simultaneous confidence intervals."""
    plain = next(iter(values.values()))
    rows = [Row(rule, own) for rule, own in values.items()]
    for n, row in enumerate(rows[1:], 1):
        gains = (np.array(row.values) - plain) * (-1 if minimize else 1)
        margin = _margin(gains, RISK / (len(rows) - 1))
        rows[n] = row._replace(gain=float(gains.mean()), margin=margin)
    return rows


def _margin(gains: np.ndarray, risk: float = RISK) -> float:
    """Half-width of the mean gain's interval; few end points are treated as independent."""
    many = len(gains) >= LEAST
    return of_series(gains).margin(risk) if many else student_margin(gains, risk)


def best_of(rows: Sequence[Row]) -> Row:
    """The candidate with the largest mean gain; plain if none is positive."""
    return max(rows, key=lambda row: row.gain)


def verdict(rows: Sequence[Row], command: str = "wima average") -> list[str]:
    """The conclusion in words.  command: the one that writes an average."""
    best, ends = best_of(rows), len(rows[0].values)
    if best is rows[0]:
        return ["Averaging does not help here: no candidate is better than the plain model."]
    gain = f"{best.rule.name} is best: {best.mean:.5g}, plain: {rows[0].mean:.5g}"
    if ends == 1:
        return [f"{gain}.", "With one end point, the uncertainty is unknown; use --ends 5."]
    summary = f"{gain}; gain {best.gain:.3g} ± {best.margin:.2g} over {ends} end points."
    if best.gain <= best.margin:
        noise = "That is within the noise, so there is no evidence that averaging helps here."
        return [summary, f"{noise} More end points give a narrower interval: --ends {2 * ends}."]
    helps = f"Averaging helps here: {command} {best.rule.option}."
    return [summary, helps, *_equals(rows, best)]


def _equals(rows: Sequence[Row], best: Row) -> list[str]:
    """The candidates that are indistinguishable from the best."""
    close = [row for row in rows[1:] if row is not best and _overlaps(row, best)]
    names = ", ".join(row.rule.name for row in close)
    return [f"Indistinguishable from the best with these end points: {names}."] if names else []


def _overlaps(row: Row, best: Row) -> bool:
    differences = np.array(best.values) - row.values
    return bool(abs(differences.mean()) <= _margin(differences))

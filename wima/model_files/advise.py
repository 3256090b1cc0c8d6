"""Finds the best average of saved checkpoints, with a confidence interval for its gain.

Every candidate is evaluated as if training had ended at each of the last m checkpoints.  Its gain
at an end point is its metric minus that of the plain checkpoint there.  Both share the test set and
the state of training, so the difference is less noisy than either.  The m gains give a mean and a
t-interval.  The intervals cover all k candidates simultaneously with 95 % confidence (Bonferroni:
each has level 1 - 0.05/k), so the best of many does not count as a gain just by luck.  Gains at
neighbouring end points may be correlated: with 30 or more end points, intervals are widened to
account for that, as in reports; with fewer, gains are treated as independent.
"""

import importlib.util
import json
import shlex
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from wima.core.errors import RunError, UsageError, check, check_count
from wima.core.statistics import LEAST, RISK, of_series, student_margin
from wima.model_files.mean import Decay, Rule, Window, average_files
from wima.model_files.read import INDEX

T = TypeVar("T")
DECAYS = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)

ALONE = ""  # the key of an unnamed number
MODULE = "wima_evaluation"  # the user's script in sys.modules
PRINT = 'Print the number, or {"accuracy": 0.93}, as the last line.'


class Row(NamedTuple):
    """A candidate and its metric at every end point."""

    rule: Rule
    values: list[float]
    gain: float = 0.0  # mean over end points; positive is better
    margin: float = 0.0  # half-width of the gain's interval; NaN with one end point or equal gains

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


def candidates(files: int, windows: str | None, decays: str | None) -> list[Rule]:
    """Plain, then windows and EMAs, from comma-separated lists or the defaults."""
    sizes = default_windows(files) if windows is None else _numbers("--windows", windows, int)
    # A decay remembers about 1 / (1 - decay) checkpoints; there must be so many.
    covered = [decay for decay in DECAYS if round(1 / (1 - decay)) <= files]
    rates = covered if decays is None else _numbers("--decays", decays, float)
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
    measured: dict[tuple[object, ...], float] = {}
    values: dict[Rule, list[float]] = {rule: [] for rule in rules}
    with tempfile.TemporaryDirectory(prefix="wima-advise-") as folder:
        for done, end in enumerate(ends):
            for n, rule in enumerate(rules):
                used = tuple(rule.newest(files[:end]))
                same = (used, rule if isinstance(rule, Decay) else None)  # windows of all files
                if same not in measured:
                    ending = ".safetensors" if used[-1].suffix == INDEX else used[-1].suffix
                    candidate = Path(folder) / f"{used[-1].stem}{ending}"
                    average_files(used, candidate, rule, key=key)
                    measured[same] = evaluate(candidate)
                    candidate.unlink(missing_ok=True)
                values[rule].append(measured[same])
                progress((done + (n + 1) / len(rules)) / len(ends))
    return compare(values, minimize)


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


def verdict(rows: Sequence[Row]) -> list[str]:
    """The conclusion in words, with the command that writes the best average."""
    best, ends = best_of(rows), len(rows[0].values)
    if best is rows[0]:
        return ["Averaging does not help here: no candidate is better than the plain model."]
    gain = f"{best.rule.name} is best: {best.mean:.5g}, plain: {rows[0].mean:.5g}"
    if ends == 1:
        return [f"{gain}.", "With one end point, the uncertainty is unknown; use --ends 5."]
    more = f"--ends {2 * ends}"
    if np.isnan(best.margin):
        why = f"All {ends} gains are equal. With few end points that is often chance, so the "
        return [f"{gain}; gain {best.gain:.3g}.", f"{why}uncertainty is unknown; use {more}."]
    summary = f"{gain}; gain {best.gain:.3g} ± {best.margin:.2g} over {ends} end points."
    if best.gain <= best.margin:
        noise = "That is within the noise, so there is no evidence that averaging helps here."
        return [summary, f"{noise} More end points give a narrower interval: {more}."]
    others = [row for row in rows[1:] if row is not best]
    gaps = {row.rule.name: np.array(best.values) - row.values for row in others}
    equal = [name for name, gap in gaps.items() if not abs(gap.mean()) > _margin(gap)]
    close = f"Indistinguishable from the best with these end points: {', '.join(equal)}."
    helps = f"Averaging helps here: wima average {best.rule.option}."
    return [summary, helps, *([close] if equal else [])]


class Evaluator:
    """Returns the metric of a checkpoint file.

    text: a Python file that defines `evaluate(path)`, which is loaded once; or a command, which is
    run for each checkpoint, without a shell, with {} replaced by the file name.
    metric: its name, if there are several.  By default, the first name that is read.
    """

    def __init__(
        self,
        text: str,
        metric: str | None = None,
        announce: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.metric = metric
        self._announce = announce
        self._numbers = _source(text)

    def __call__(self, file: Path) -> float:
        numbers = self._numbers(file)
        if self.metric is None:
            named = [name for name in numbers if name != ALONE]
            choice = f"There are several metrics; choose {' or '.join(named)} with --metric."
            check(len(named) <= 1, choice)
            self.metric = named[0] if named else ALONE
        if self.metric not in numbers:
            got = ", ".join(name or "an unnamed number" for name in numbers)
            wanted = f"the metric {self.metric!r}" if self.metric else "an unnamed number"
            raise UsageError(f"Expected {wanted} for {file.name}, got {got}. {PRINT}")
        value = numbers[self.metric]
        shown = f"{self.metric}={value:.5g}" if self.metric else f"{value:.5g}"
        if not isfinite(value):
            raise RunError(f"Read {shown} for {file.name}; expected a finite number.")
        self._announce(f"Read {shown} for {file.name}")
        self._announce = lambda line: None  # once
        return value


def _source(text: str) -> Callable[[Path], dict[str, float]]:
    """The function that returns a checkpoint's metrics by name."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--eval {text!r} cannot be split into words: {error}.") from None
    if len(words) == 1 and words[0].endswith(".py"):
        return _function(Path(words[0]))
    check(
        any("{}" in word for word in words),
        "--eval must be a Python file that defines evaluate(path), or a command with {} for the "
        f"file name, for example 'python evaluate.py {{}}'; got {text!r}.",
    )
    return lambda file: _printed([word.replace("{}", str(file)) for word in words])


def _function(script: Path) -> Callable[[Path], dict[str, float]]:
    """The function `evaluate` of a Python file, called in this process."""
    check(script.is_file(), f"--eval: the file {script} does not exist.")
    spec = importlib.util.spec_from_file_location(MODULE, script)
    assert spec is not None and spec.loader is not None
    module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.parent.resolve()))  # as `python evaluate.py` would
    _run(script, spec.loader.exec_module, module)
    function = getattr(module, "evaluate", None)
    check(callable(function), f"--eval: {script} must define a function evaluate(path).")

    def evaluate(file: Path) -> dict[str, float]:
        value = _run(script, function, str(file))
        expected = f"evaluate(path) in {script} must return a number or a dict such as "
        return _metrics(value, f"{expected}{{'accuracy': 0.93}}; got {value!r:.80}.")

    return evaluate


def _run(script: Path, function: Any, argument: Any) -> Any:
    """Call the user's code; tracebacks of its errors are limited to that code."""
    try:
        return function(argument)
    except (Exception, SystemExit) as error:
        inside = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
        own = next((n for n, f in enumerate(inside) if Path(f.filename) == script), 0)
        lines = traceback.format_list(inside[own:]) + traceback.format_exception_only(error)
        raise RunError(f"{script} failed.\n{''.join(lines).rstrip()}") from None


def _printed(words: list[str]) -> dict[str, float]:
    """The metrics that a command prints."""
    command = shlex.join(words)
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise UsageError(f"--eval: cannot run {words[0]!r}: {error.strerror}.") from None
    printed, errors = done.stdout.strip().splitlines(), done.stderr.strip().splitlines()
    if done.returncode:
        output = "\n".join((errors or printed or ["It printed nothing."])[-20:])
        raise RunError(f"`{command}` failed with exit code {done.returncode}.\n{output}")
    last = printed[-1] if printed else ""
    got = f"its last line is: {last}" if last else "it printed nothing."
    message = f"`{command}` printed no metric; {got}\n{PRINT}"
    try:
        return _metrics(json.loads(last), message)
    except ValueError:
        raise UsageError(message) from None


def _metrics(value: Any, message: str) -> dict[str, float]:
    """Metrics by name from a number or a dict of numbers, including NumPy's and torch's."""
    table = value if isinstance(value, Mapping) else {ALONE: value}
    try:
        return {str(name): float(number) for name, number in table.items()}
    except (TypeError, ValueError):
        raise UsageError(message) from None

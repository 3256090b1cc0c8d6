"""Evaluates checkpoints with a user's function or command."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from wima.core.errors import RunError, UsageError, check

HOLE = "{}"
NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"
NAMED = rf"[A-Za-z_][\w./@-]*\s*[=:]\s*{NUMBER}"
LINE = re.compile(rf"{NUMBER}|{NAMED}(?:[\s,;]+{NAMED})*", re.ASCII)
READING = re.compile(rf"(?:([\w./@-]+)\s*[=:]\s*)?({NUMBER})", re.ASCII)
ALONE = ""  # the key of an unnamed number
MODULE = "wima_evaluation"  # the user's script in sys.modules
PRINT = "Print `accuracy=0.93` (with the metric's name), or only the number on a line."


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
        self._announce: Callable[[str], None] | None = announce
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
        if self._announce is not None:
            self._announce(f"Read {shown} for {file.name}")
            self._announce = None
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
        any(HOLE in word for word in words),
        "--eval must be a Python file that defines evaluate(path), or a command with {} for the "
        f"file name, for example 'python evaluate.py {{}}'; got {text!r}.",
    )
    return lambda file: _printed([word.replace(HOLE, str(file)) for word in words])


def _function(script: Path) -> Callable[[Path], dict[str, float]]:
    """The function `evaluate` of a Python file, called in this process."""
    check(script.is_file(), f"--eval: the file {script} does not exist.")
    spec = importlib.util.spec_from_file_location(MODULE, script)
    assert spec is not None and spec.loader is not None
    module = sys.modules[MODULE] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(script.parent.resolve()))  # as `python evaluate.py` would
    _run(script, spec.loader.exec_module, module)
    evaluate = getattr(module, "evaluate", None)
    check(callable(evaluate), f"--eval: {script} must define a function evaluate(path).")
    return lambda file: _returned(_run(script, evaluate, str(file)), script)


def _run(script: Path, function: Any, argument: Any) -> Any:
    """Call the user's code; tracebacks of its errors are limited to that code."""
    try:
        return function(argument)
    except (Exception, SystemExit) as error:
        inside = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
        own = next((n for n, f in enumerate(inside) if Path(f.filename) == script), 0)
        lines = traceback.format_list(inside[own:]) + traceback.format_exception_only(error)
        raise RunError(f"{script} failed.\n{''.join(lines).rstrip()}") from None


def _returned(found: Any, script: Path) -> dict[str, float]:
    """Metrics by name from a number or a dict of numbers, including NumPy's and torch's."""
    table = found if isinstance(found, Mapping) else {ALONE: found}
    try:
        return {str(name): float(value) for name, value in table.items()}
    except (TypeError, ValueError):
        raise UsageError(
            f"evaluate(path) in {script} must return a number or a dict such as "
            f"{{'accuracy': 0.93}}; got {found!r:.80}."
        ) from None


def _printed(words: list[str]) -> dict[str, float]:
    """The metrics that a command prints."""
    command = shlex.join(words)
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
    except OSError as error:
        raise UsageError(f"--eval: cannot run {words[0]!r}: {error.strerror}.") from None
    if done.returncode:
        output = _end(done.stderr) or _end(done.stdout) or "It printed nothing."
        raise RunError(f"`{command}` failed with exit code {done.returncode}.\n{output}")
    numbers = read_numbers(done.stdout)
    last = _end(done.stdout, 1)
    got = f"its last line is: {last}" if last else "it printed nothing."
    check(bool(numbers), f"`{command}` printed no metric; {got}\n{PRINT}")
    return numbers


def read_numbers(printed: str) -> dict[str, float]:
    """The last value of each name in lines like `accuracy=0.93` or `loss: 0.2, accuracy: 0.93`.

    If there are none, the last line with only a number counts.  All other lines are ignored.
    """
    lines = [line.strip().removesuffix("%").rstrip() for line in printed.splitlines()]
    found = [pair for line in lines if LINE.fullmatch(line) for pair in READING.findall(line)]
    numbers = {name: float(value) for name, value in found}
    return {name: n for name, n in numbers.items() if name} or numbers


def _end(text: str, lines: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])

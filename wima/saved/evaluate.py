"""Evaluates a checkpoint with a command of the user's."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from wima.core.checks import is_number
from wima.core.errors import RunError, UsageError, check

HOLE = "{}"
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")


@dataclass(frozen=True)
class Command:
    """Runs the command with the file's name in place of {}, without a shell.

    The result is the last number that it prints; or, if its last line is a JSON object, the number
    called `metric` there.
    """

    text: str
    metric: str | None = None

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise UsageError(f"--eval {self.text!r} cannot be split into words: {error}.") from None
        hole = any(HOLE in word for word in words)
        example = 'for example --eval "python evaluate.py {}"'
        check(hole, f"--eval must hold {HOLE}, where the file's name goes; {example}.")

    def __call__(self, file: Path) -> float:
        """The metric of a checkpoint."""
        words = [word.replace(HOLE, str(file)) for word in shlex.split(self.text)]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
            )
        except OSError as error:
            raise UsageError(f"--eval: cannot run {words[0]!r}: {error.strerror}.") from None
        if done.returncode:
            output = _end(done.stderr) or _end(done.stdout) or "It printed nothing."
            raise RunError(f"`{shlex.join(words)}` ended with {done.returncode}.\n{output}")
        return self._number(done.stdout, shlex.join(words))

    def _number(self, printed: str, command: str) -> float:
        value = _from_json(printed, self.metric)
        if value is None and self.metric is None:
            value = float((NUMBER.findall(printed) or ["nan"])[-1])
        if value is None or not isfinite(value):
            wanted = f"a JSON object with {self.metric!r}" if self.metric else "a number"
            output = _end(printed) or "nothing"
            raise RunError(f"Expected {wanted} as the last output of `{command}`, got: {output}")
        return value


def _from_json(printed: str, metric: str | None) -> float | None:
    """The number in the last line, if that is a JSON object; None if it is not."""
    try:
        table = json.loads(printed.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None
    if not isinstance(table, dict):
        return None
    numbers = {name: float(value) for name, value in table.items() if is_number(value)}
    if metric is None and len(numbers) > 1:
        raise UsageError(f"Which number? Choose one of {', '.join(numbers)} with --metric.")
    return numbers.get(metric) if metric else next(iter(numbers.values()), None)


def _end(text: str, lines: int = 20) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])

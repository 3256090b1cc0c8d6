"""Commands and pieces of code in processes of their own, as users start them.

Commands are forks of the zygote (`tests.helpers.zygote`), unless they are started in its `cold()`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT

WIMA = (sys.executable, "-m", "wima")
LIMIT = 120  # seconds


def environment(**changes: str) -> dict[str, str]:
    """This process's variables; the package is found from any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def shell(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `wima ...` to its end."""
    return subprocess.run(
        [*WIMA, *arguments],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def start(
    *arguments: str, cwd: Path, ignored: tuple[int, ...] = (), **options: Any
) -> subprocess.Popen[str]:
    """Start `wima ...`; ignored: signals, as `nohup` has it; `options` are those of Popen."""
    settings = {"env": environment(), "text": True, **options}
    with _ignored(ignored):
        return subprocess.Popen([*WIMA, *arguments], cwd=cwd, **settings)


@contextmanager
def _ignored(signals: tuple[int, ...]) -> Iterator[None]:
    """Ignore these and no others of a terminal's signals, even if the tests run in background."""
    numbers = (signal.SIGINT, signal.SIGHUP)
    before = {n: signal.signal(n, signal.SIG_IGN if n in signals else _heard) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heard(number: int, frame: object) -> None:
    """While a process starts, a signal is for it."""


def printed(code: str, *arguments: str, python: str = sys.executable, **variables: str) -> str:
    """What a piece of Python prints in a fresh interpreter, where it has to end well."""
    command, around = [python, "-c", code, *arguments], environment(**variables)
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout

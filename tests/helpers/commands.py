"""Commands and pieces of code in processes of their own, as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
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


def start(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Start `wima ...`; `options` are those of Popen."""
    settings = {"env": environment(), "text": True, **options}
    return subprocess.Popen([*WIMA, *arguments], cwd=cwd, **settings)


def printed(code: str, *arguments: str, python: str = sys.executable, **variables: str) -> str:
    """What a piece of Python prints in a fresh interpreter, where it has to end well."""
    command, around = [python, "-c", code, *arguments], environment(**variables)
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout

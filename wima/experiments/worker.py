"""A process that plays runs, one after the other, for a sweep.

    python -m wima.experiments.worker

A line on standard input is a run, `{"path": ..., "settings": ...}`; a line on standard output tells
of a round, `{"t": 3, "rounds": 300}`, or how a run ended, `{"end": "done", "message": ""}`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tomllib
from pathlib import Path
from typing import Any, Self, TextIO

from wima.core.errors import Diverged, RunError, UsageError
from wima.runs.launch import Interrupted, launch, resume
from wima.runs.settings import make_settings
from wima.simulation.simulation import Record


class Teller:
    """Tells the sweep of each round; asks the run to stop if nobody listens any more."""

    def __init__(self, out: TextIO, rounds: int, done: int) -> None:
        self._out, self._rounds = out, rounds
        self._tell(done)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def update(self, record: Record) -> None:
        self._tell(record.t)

    def _tell(self, t: int) -> None:
        try:
            tell(self._out, {"t": t, "rounds": self._rounds})
        except BrokenPipeError:  # the sweep was killed: keep what was reached
            os.kill(os.getpid(), signal.SIGTERM)


def tell(out: TextIO, what: dict[str, Any]) -> None:
    print(json.dumps(what), file=out, flush=True)


def play(path: Path, settings: str, out: TextIO) -> tuple[str, str]:
    """Make or resume a run; how it ended, and why."""

    def progress(rounds: int, done: int) -> Teller:
        return Teller(out, rounds, done)

    try:
        if path.exists():
            resume(path, progress)
        else:
            launch(make_settings(tomllib.loads(settings)), path, progress)
    except Interrupted as reason:
        return "interrupted", str(reason)
    except Diverged as reason:
        return "diverged", str(reason)
    except (UsageError, RunError) as reason:
        return "failed", str(reason)
    return "done", ""


def main() -> None:
    """Play runs until there are no more lines, or one is interrupted."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (what runs print)
    sweep = os.getppid()
    for line in sys.stdin:
        if os.getppid() != sweep:  # it was killed: nobody waits for this run
            break
        asked = json.loads(line)
        end, message = play(Path(asked["path"]), asked["settings"], out)
        with contextlib.suppress(BrokenPipeError):
            tell(out, {"end": end, "message": message})
        if end == "interrupted":
            break


if __name__ == "__main__":
    main()

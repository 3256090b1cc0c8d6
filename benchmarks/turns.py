"""The protocol between a peer and the driver: lines of JSON on standard input and output.

    peer   -> {"rounds": 1, "seconds": 0.8, "loss": 2.3}     the first round is finished
    driver -> {"rounds": 100, "evaluate": false}             a turn: play so many rounds
    peer   -> {"rounds": 100, "seconds": 1.9, "loss": 1.7}
    driver closes the pipe                                   the end

Between turns a peer waits inside `Turns.after`, so simulators that own their loop take part too:
they are told to play for ever, and call `after` wherever they offer a hook at the end of a round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress

FOREVER = 10**9  # rounds


class Over(BaseException):
    """The driver has closed the pipe.  No `Exception`, so that simulators let it through."""


class Turns:
    """A peer's end of the protocol.  Takes standard input and output for itself."""

    def __init__(self) -> None:
        self._inbox, self._outbox = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)  # what a simulator prints must not look like an answer
        os.close(nothing)
        self.left = self._rounds = 1
        self.evaluate = False  # whether the global model is evaluated after each round
        self._begin = time.perf_counter()

    def after(self, loss: Callable[[], float], rounds: int = 1) -> None:
        """Count finished rounds; at the end of a turn report, and wait for the next one."""
        self.left -= rounds
        if self.left > 0:
            return
        seconds = time.perf_counter() - self._begin
        self._send({"rounds": self._rounds, "seconds": seconds, "loss": loss()})
        self._next(self._inbox.readline())

    def _next(self, line: str) -> None:
        """Begin the turn that a line of the driver asks for."""
        if not line:
            raise Over
        turn = json.loads(line)
        self.left = self._rounds = turn["rounds"]
        self.evaluate = turn["evaluate"]
        self._begin = time.perf_counter()

    def _send(self, message: dict[str, object]) -> None:
        self._outbox.write(json.dumps(message) + "\n")
        self._outbox.flush()


def play(main: Callable[..., None]) -> None:
    """Run a peer's main function with the arguments of the command line, until the end."""
    with suppress(Over):
        main(*sys.argv[1:])

"""Signals: handled within a block, ending a run, and terminals that are closed."""

import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | signal.Handlers
HANGUP = getattr(signal, "SIGHUP", None)  # Windows has none
ASKED = (signal.SIGINT, signal.SIGTERM)  # by a user, by a system
ENDING = (*ASKED, *([HANGUP] if HANGUP else []))


@contextmanager
def handled_by(handler: Handler, numbers: Iterable[int] = ENDING) -> Iterator[None]:
    """Install the handler within the block; outside the main thread, do nothing."""
    try:
        before = {number: signal.signal(number, handler) for number in numbers}
    except ValueError:  # only the main thread can set signal handlers
        yield
        return
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class Interrupted(Exception):  # noqa: N818  (not an error)
    """The user stopped the run; the message says after which round."""

    state, reason = "interrupted", ""  # as recorded in the folder

    def __init__(self, message: str, code: int = 130) -> None:
        super().__init__(message)
        self.code = code  # exit code of the process


class Pruned(Interrupted):
    """A `Following` stopped the run because others are better; it can be resumed."""

    state = "pruned"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class StopRequest:
    """The first Ctrl-C, SIGTERM or SIGHUP lets the round finish; the second ends it immediately.

    Further signals do not interrupt the clean-up.  Signals that were already ignored, as with
    `nohup`, stay ignored.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the first one received
        self._at_once = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == HANGUP:
            forget_viewers()
        if self.signal is None:
            self.signal = number
        elif not self._at_once:
            self._at_once = True
            raise KeyboardInterrupt

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Handle signals within the block."""
        watched = [s for s in ENDING if signal.getsignal(s) is not signal.SIG_IGN]
        with handled_by(self._handle, watched):
            yield


def forget_viewers() -> None:
    """Discard output to a closed terminal or pipe, instead of failing."""
    closed = select.poll()
    for number in (1, 2):
        closed.register(number, 0)  # reports only errors
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, _ in closed.poll(0):
        os.dup2(nowhere, number)
    os.close(nowhere)

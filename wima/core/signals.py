"""Signals that ask a process to end, handled until a block is left."""

from __future__ import annotations

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
    """Let the handler have these signals; outside the main thread, where none are, do nothing."""
    try:
        before = {number: signal.signal(number, handler) for number in numbers}
    except ValueError:  # not in the main thread, which alone can handle signals
        yield
        return
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)

"""Handling of termination signals within a block."""

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

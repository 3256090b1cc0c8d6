"""Whether the ranks of a distributed run are alive.

Each rank writes a growing number to the group's store and reads the numbers of the ranks it depends
on: rank 0 depends on all, the others on rank 0.  A killed process closes its connections, so ranks
that wait for it get an error at once; a machine that is switched off just falls silent.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress

from torch.distributed import Store  # type: ignore[attr-defined]

from wima.core.errors import RunError
from wima.core.text import echo

BEAT = 0.25  # seconds between two numbers
SILENCE = 15.0  # seconds after which a rank counts as lost
PATIENCE = 300.0  # the same before the first round: reading data can block a process for long
GRACE = 8.0  # seconds that the run has to end by itself when a rank is lost
NAMING = 2.0  # seconds of silence that show which rank closed its connections
FAREWELL = 2.0  # seconds that rank 0 waits for the others before it exits
LEFT = b"left"


class Pulse:
    """A thread that shows that this rank is alive, and watches the others."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store, self._rank, self._key = store, rank, f"pulse/{rank}"
        self._others = range(1, size) if rank == 0 else [0]
        self._heard = dict.fromkeys(self._others, b"")  # the newest number
        # Counted, not timed: if all ranks are paused together, none of them counts as lost.
        self._missed = dict.fromkeys(self._others, 0)  # own beats since
        self._stop = threading.Event()
        self.needed = True  # whether this process cannot continue without the others
        self.silence = PATIENCE
        self.lost: str | None = None  # which rank, and how
        self._lost: set[int] = set()
        store.set(self._key, "0")
        self._thread = threading.Thread(target=self._run, name="wima-pulse", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise if a rank was lost."""
        if self.lost is not None:
            raise RunError(self.lost)

    def reason(self, error: Exception) -> str:
        """The rank that caused a connection error, as a sentence."""
        limit = time.monotonic() + 4 * NAMING
        while self.lost is None and time.monotonic() < limit:
            time.sleep(BEAT / 5)
            rank = max(self._missed, key=self._missed.__getitem__, default=0)
            if self._missed.get(rank, 0) > NAMING / BEAT:
                self._lose(rank, "exited or can no longer be reached")
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return self.lost or f"The connection between the ranks failed: {text}"

    def stop(self, left: bool = False) -> None:
        """Stop the thread; left: tell the others that this rank has left."""
        self._stop.set()
        self._thread.join(timeout=2 * BEAT)
        if left:
            self._say_left()
            if self._rank == 0:
                self._wait_for_others()

    def _say_left(self) -> None:
        with suppress(RuntimeError):
            self._store.set(self._key, LEFT.decode())

    def _wait_for_others(self) -> None:
        """Give the others time to see that rank 0 has left: the store may be in this process."""
        limit = time.monotonic() + FAREWELL
        with suppress(RuntimeError):
            while time.monotonic() < limit and any(
                self._store.get(f"pulse/{other}") != LEFT
                for other in self._others
                if other not in self._lost
            ):
                time.sleep(BEAT / 10)

    def _run(self) -> None:
        beats, since = 0, 0.0
        while not self._stop.wait(BEAT):
            beats += 1
            try:
                self._store.set(self._key, str(beats))
                self._listen()
            except RuntimeError:  # the store is in rank 0's process or torchrun's
                if self._rank == 0:
                    self.lost = self.lost or "torchrun has exited, so the run cannot continue."
                self._lose(0, "exited or can no longer be reached")
            if self.lost is None:
                continue
            since = since or time.monotonic()
            # Rank 0 has a run to close; the others have nothing to save.
            if time.monotonic() - since >= (GRACE if self._rank == 0 else 0):
                self._end()
                return

    def _listen(self) -> None:
        for other in self._others:
            beat, before = self._store.get(f"pulse/{other}"), self._heard[other]
            self._heard[other] = beat
            self._missed[other] = 0 if beat != before else self._missed[other] + 1
            if beat == LEFT:
                self._lose(other, "has left the run")
            elif self._missed[other] > self.silence / BEAT:
                self._lose(other, f"has been silent for {self.silence:.0f} s")

    def _lose(self, rank: int, how: str) -> None:
        self._lost.add(rank)
        self.lost = self.lost or _sentence(rank, how)

    def _end(self) -> None:
        """Exit a process whose main thread may wait forever."""
        if self._stop.is_set():
            return
        self._say_left()
        if not self.needed:
            return
        echo(f"Error: {self.lost}", sys.stderr)
        sys.stderr.flush()
        os._exit(1)


def _sentence(rank: int, how: str) -> str:
    return f"Rank {rank} {how}, so the run cannot continue; see the output of rank {rank}."

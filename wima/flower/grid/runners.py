"""Runs nodes in this process, or in workers that are started once and keep the ClientApp."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Sequence
from copy import deepcopy
from queue import SimpleQueue
from threading import Lock
from typing import Protocol

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode  # not part of Flower's public API

from wima.core.errors import RunError, UsageError
from wima.core.vector import one_thread
from wima.core.workers import Exited, Worker, pickled
from wima.flower.grid.generators import preserved
from wima.flower.grid.node import (
    context_bytes,
    context_of,
    failed,
    message_bytes,
    message_of,
    read_frame,
    visit,
    write_frames,
)

Answer = tuple[Message, RecordDict | None]  # the reply, and the node's new state unless it failed


class NodeRunner(Protocol):
    """Runs nodes; may be called from several threads."""

    def visit(self, message: Message, context: Context, address: Sequence[int]) -> Answer:
        """A node's reply to a message; neither the message nor the context is changed."""
        ...

    def close(self) -> None: ...


class InThisProcess:
    """Runs nodes in this process, one at a time."""

    def __init__(self, app: ClientApp) -> None:
        self._app, self._lock = app, Lock()

    def visit(self, message: Message, context: Context, address: Sequence[int]) -> Answer:
        # The same content is often sent to many nodes, and some apps remove arrays from it.
        with self._lock, preserved(), one_thread():
            return visit(self._app, deepcopy(message), deepcopy(context), address)

    def close(self) -> None:
        pass


class InWorkers:
    """Runs nodes in worker processes, one thread each; a worker that exits is replaced."""

    def __init__(self, app: ClientApp, workers: int) -> None:
        refused = "The ClientApp cannot be sent to worker processes ({}); use workers=1."
        self._briefing = pickled(app, refused)
        self._all = [Worker("wima.flower.grid.node") for _ in range(workers)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        try:
            for child in self._all:
                self._brief(child)
                self._idle.put(child)
        except BaseException:
            self.close()
            raise

    def _brief(self, child: Worker) -> None:
        """Send the app, and wait until the child has loaded it."""
        try:
            (trouble,) = _exchange(child, self._briefing, answers=1)
        except Exited as exited:
            raise RunError(f"A worker did not start: {exited}") from None
        if trouble:
            raise UsageError(
                f"A worker cannot load the ClientApp ({trouble.decode()}); its modules must be "
                "importable there, or use workers=1, which needs no worker."
            )

    def visit(self, message: Message, context: Context, address: Sequence[int]) -> Answer:
        frames = json.dumps(list(address)).encode(), message_bytes(message), context_bytes(context)
        child = self._idle.get()
        try:
            reply, after = _exchange(child, *frames, answers=2)
        except Exited as exited:
            child = self._replaced(child)
            return failed(message, ErrorCode.UNKNOWN, exited), None
        finally:
            self._idle.put(child)
        return message_of(reply), context_of(after).state if after else None

    def _replaced(self, child: Worker) -> Worker:
        _end(child)
        fresh = Worker("wima.flower.grid.node")
        self._all[self._all.index(child)] = fresh
        self._brief(fresh)
        return fresh

    def close(self) -> None:
        for child in self._all:
            _end(child)


def _exchange(child: Worker, *frames: bytes, answers: int) -> list[bytes]:
    process = child.process
    assert process.stdin is not None and process.stdout is not None
    try:
        write_frames(process.stdin, *frames)  # type: ignore[arg-type]
        return [read_frame(process.stdout) for _ in range(answers)]  # type: ignore[arg-type]
    except (BrokenPipeError, EOFError):
        raise Exited(child.exit_message()) from None


def _end(child: Worker) -> None:
    """Close the child's input, on which it exits; kill it if it does not."""
    for pipe in (child.process.stdin, child.process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    try:
        child.process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        child.process.kill()
        child.process.wait()

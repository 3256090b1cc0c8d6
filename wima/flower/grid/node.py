"""Runs nodes of any Flower app, also in worker processes, which keep the ClientApp.

Messages and contexts are sent between processes in Flower's own serialisation.  The ClientApp is
sent once, with cloudpickle over a pipe from the parent.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from queue import SimpleQueue

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from wima.core.errors import RunError, UsageError
from wima.core.vector import one_thread
from wima.core.workers import Exited, Parent, Worker, end, pickled
from wima.flower.arrays import log
from wima.flower.generators import seed_all
from wima.flower.private import ErrorCode, context_bytes, context_of, message_bytes, message_of


def visit(
    app: ClientApp, message: Message, context: Context, address: Sequence[int]
) -> tuple[Message, RecordDict | None]:
    """The app's reply and the node's new state; an error reply and no state if it fails.

    The global generators are seeded from the address, so it does not matter which process runs it.
    """
    seed_all("flower", *address)
    try:
        reply = app(message, context)
        if not isinstance(reply, Message):
            raise TypeError(f"A ClientApp must return a Message, got {type(reply).__name__}.")
    except (Exception, SystemExit) as error:
        log.error("Node %s: %s", message.metadata.dst_node_id, traceback.format_exc())
        return failed(message, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, error), None
    return reply, context.state


def failed(message: Message, code: int, error: BaseException) -> Message:
    """The reply to a message that could not be handled, with a reason in Flower's format."""
    return Message(Error(code, f"{type(error)}:<'{error}'>"), reply_to=message)


class Workers:
    """Run nodes in processes with one thread each; one that exits is replaced."""

    def __init__(self, app: ClientApp, workers: int) -> None:
        refused = "The ClientApp cannot be sent to worker processes ({}); use workers=1."
        self._app = pickled(app, refused)
        self._all = [Worker(__name__) for _ in range(workers)]
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        try:
            for worker in self._all:  # they start at the same time
                worker.send({}, self._app)
            for worker in self._all:
                self._ready(worker)
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise

    def _ready(self, worker: Worker) -> None:
        """Wait until the worker has loaded the app."""
        try:
            ((header, _),) = worker.receive()
        except Exited as exited:
            raise RunError(f"A worker did not start: {exited}") from None
        if "error" in header:
            raise UsageError(
                f"A worker cannot load the ClientApp ({header['error']}); its modules must be "
                "importable there, or use workers=1, which needs no worker."
            )

    def visit(
        self, message: Message, context: Context, address: Sequence[int]
    ) -> tuple[Message, RecordDict | None]:
        """As the function `visit`; may be called from several threads."""
        worker = self._idle.get()
        try:
            header = {"address": list(address)}
            worker.send(header, message_bytes(message), context_bytes(context))
            ((_, (reply, *changed)),) = worker.receive()
        except Exited as exited:
            end([worker])
            index, worker = self._all.index(worker), Worker(__name__)
            self._all[index] = worker
            worker.send({}, self._app)
            self._ready(worker)
            return failed(message, ErrorCode.UNKNOWN, exited), None
        finally:
            self._idle.put(worker)
        return message_of(reply), context_of(changed[0]).state if changed else None

    def close(self) -> None:
        end(self._all)


def main() -> None:
    """Run nodes until the parent ends, as a worker."""
    parent = Parent()
    _, (pickled_app,) = next(parent)
    try:
        app = pickle.loads(pickled_app)
    except Exception as error:
        parent.send({"error": f"{type(error).__name__}: {error}"})
        return
    parent.send({})
    with one_thread():
        for header, parts in parent:
            message, context = message_of(parts[0]), context_of(parts[1])
            reply, state = visit(app, message, context, header["address"])
            try:
                changed = [] if state is None else [context_bytes(context)]
                answer = [message_bytes(reply), *changed]
            except Exception as error:  # a record that Flower cannot serialise
                answer = [message_bytes(failed(message, ErrorCode.UNKNOWN, error))]
            parent.send({}, *answer)

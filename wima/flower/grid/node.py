"""Handles one message at one node with a Flower ClientApp, and the worker process that does so.

Messages and contexts are sent between processes in Flower's own serialisation.  The ClientApp is
sent once, with cloudpickle over a pipe from the parent.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import BinaryIO

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

# Flower's serialisation and error codes are not part of its public API.
from flwr.common.constant import ErrorCode
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ContextProto, Message as MessageProto

from wima.core.vector import one_thread
from wima.flower.averages.models import log
from wima.flower.grid.generators import seed_all


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


def message_bytes(message: Message) -> bytes:
    return bytes(message_to_proto(message).SerializeToString())


def message_of(data: bytes) -> Message:
    return message_from_proto(MessageProto.FromString(data))


def context_bytes(context: Context) -> bytes:
    return bytes(context_to_proto(context).SerializeToString())


def context_of(data: bytes) -> Context:
    return context_from_proto(ContextProto.FromString(data))


def write_frames(file: BinaryIO, *frames: bytes) -> None:
    """Write each frame, preceded by its length."""
    for frame in frames:
        file.write(len(frame).to_bytes(8, "little"))
        file.write(frame)
    file.flush()


def read_frame(file: BinaryIO) -> bytes:
    """The next frame; raises `EOFError` if the other side has exited."""
    head = file.read(8)
    size = int.from_bytes(head, "little")
    frame = file.read(size) if len(head) == 8 else b""
    if len(head) < 8 or len(frame) < size:
        raise EOFError
    return frame


def main() -> None:
    """Run nodes until standard input closes, which it does when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    inbox, outbox = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the app prints must not look like a reply
    try:
        app = pickle.loads(read_frame(inbox))
    except Exception as error:
        write_frames(outbox, f"{type(error).__name__}: {error}".encode())
        return
    write_frames(outbox, b"")
    with one_thread():
        while True:
            try:
                address, message, context = (read_frame(inbox) for _ in range(3))
            except EOFError:
                return
            write_frames(outbox, *_answer(app, address, message, context))


def _answer(app: ClientApp, address: bytes, message: bytes, context: bytes) -> tuple[bytes, bytes]:
    """The reply and the new context, which is empty if the app failed."""
    changed = context_of(context)
    reply, state = visit(app, message_of(message), changed, json.loads(address))
    if state is None:
        return message_bytes(reply), b""
    try:
        return message_bytes(reply), context_bytes(changed)
    except Exception as error:  # a record that Flower cannot serialise
        return message_bytes(failed(message_of(message), ErrorCode.UNKNOWN, error)), b""

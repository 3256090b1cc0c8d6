"""Runs any Flower app on our own processes, reproducibly from a seed.

`run_flower(server_app, client_app, nodes=100)` runs an app unchanged; `LocalGrid` is the grid to
pass to a strategy's `start`.
"""

import pickle
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import deepcopy
from dataclasses import dataclass
from importlib.metadata import version
from queue import SimpleQueue
from threading import RLock
from typing import Any, Self

from flwr.app import Context, Error, Message, RecordDict, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from wima.core.errors import RunError, UsageError, check, check_count
from wima.core.machine import cores
from wima.core.randomness import rng
from wima.core.vector import one_thread
from wima.core.workers import Exited, Parent, Worker, end, pickled
from wima.flower.arrays import log, preserved, seed_all

TESTED = "1.38, 1.41 and 1.42"

try:
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.common.serde import (
        context_from_proto,
        context_to_proto,
        message_from_proto,
        message_to_proto,
    )
    from flwr.proto.message_pb2 import Context as ContextProto, Message as MessageProto
    from flwr.supercore.run import Run
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as error:
    raise UsageError(
        f"The grid of wima.flower was tested with flwr {TESTED}; this is flwr {version('flwr')}, "
        f"which has changed inside ({error}). Install a tested version: pip install 'flwr~=1.41.0'."
    ) from error


# The first number after the seed in addresses of random numbers.
SERVER, NODE_IDS, VISITS = 0, 1, 2


def to_bytes(message: Message, context: Context | None = None) -> list[bytes]:
    """The message, and the context if there is one, as Flower sends them."""
    parts = [message_to_proto(message).SerializeToString()]
    return parts if context is None else [*parts, context_to_proto(context).SerializeToString()]


def from_bytes(message: bytes, *contexts: bytes) -> tuple[Message, Context | None]:
    """What `to_bytes` wrote."""
    context = context_from_proto(ContextProto.FromString(contexts[0])) if contexts else None
    return message_from_proto(MessageProto.FromString(message)), context


@dataclass
class Node:
    """A node as the grid sees it."""

    partition: int
    context: Context  # its state is kept from message to message
    messages: int = 0  # number sent to it so far
    last: Future[Message] | None = None  # the reply to the newest message


class LocalGrid(Grid):
    """A Flower grid whose nodes run in this process and its workers.

    Node ids, and all random numbers that apps draw from the global generators of Python, NumPy and
    torch, are functions of the seed, the node and the number of the message.  Replies come in the
    order of the messages.  So results do not depend on the number of workers.

    With one worker, nodes run in this process while messages are sent, and no timeout
    interrupts them.  workers=None: one per core.  node_config: what all nodes have in theirs,
    besides `partition-id` and `num-partitions`.
    """

    def __init__(
        self,
        client_app: ClientApp,
        nodes: int,
        *,
        workers: int | None = None,
        seed: int = 0,
        run_config: Mapping[str, UserConfigValue] | None = None,
        node_config: Mapping[str, UserConfigValue] | None = None,
    ) -> None:
        check(isinstance(client_app, ClientApp), f"expected a ClientApp, got {client_app!r:.80}.")
        check_count("nodes", nodes)
        check_count("seed", seed, least=0)
        workers = min(nodes, cores()) if workers is None else workers
        check_count("workers", workers)
        self.seed = seed
        run_id, *ids = _ids(seed, nodes + 1)
        self._run = Run.create_empty(run_id)
        self._nodes: dict[int, Node] = {}
        for k, node_id in enumerate(ids):
            config: dict[str, UserConfigValue] = {"partition-id": k, "num-partitions": nodes}
            config |= node_config or {}
            context = Context(run_id, node_id, config, RecordDict(), dict(run_config or {}))
            self._nodes[node_id] = Node(k, context)
        self._replies: dict[str, Future[Message]] = {}  # by the id of the message
        self._sent, self._lock = 0, RLock()
        self._app = client_app
        self._workers = None if workers == 1 else Workers(client_app, workers)
        self._generators = preserved()
        TaskIdentity.task_id = 1  # Flower stamps the messages that this process makes
        TaskIdentity.run_id, TaskIdentity.node_id = run_id, SUPERLINK_NODE_ID

    def __enter__(self) -> Self:
        """Seed the global generators; they are restored on exit."""
        self._generators.__enter__()
        seed_all("flower", self.seed, SERVER)
        return self

    def __exit__(self, *error: Any) -> None:
        self._generators.__exit__(*error)
        self.close()

    def close(self) -> None:
        """End the worker processes; pending messages are dropped."""
        if self._workers is not None:
            self._workers.close()

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def node_context(self, node_id: int) -> Context:
        """What a node keeps between messages; do not change it."""
        return self._nodes[node_id].context

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        with self._lock:
            return [self._push(message) for message in sent]

    def _push(self, message: Message) -> str:
        self._sent += 1
        number = str(self._sent)
        run_id = self._run.run_id
        # Metadata has no setters for these; Flower's own grids write them in the same way.
        vars(message.metadata).update(
            _message_id=number, _run_id=run_id, _src_node_id=SUPERLINK_NODE_ID
        )
        node = self._nodes.get(message.metadata.dst_node_id)
        if node is None:
            missing = LookupError(f"there is no node {message.metadata.dst_node_id}")
            self._replies[number] = _done(failed(message, ErrorCode.NODE_UNAVAILABLE, missing))
            return number
        call = (node, message, node.messages, node.last)
        node.messages += 1
        if self._workers is None:
            node.last = _done(self._visit(*call))
        else:
            node.last = self._workers.threads.submit(self._visit, *call)
        self._replies[number] = node.last
        return number

    def _visit(
        self, node: Node, message: Message, count: int, before: Future[Message] | None
    ) -> Message:
        """The node's reply, once it has replied to its earlier messages."""
        if before is not None:
            wait([before])  # it started earlier, so there is no deadlock
        address = (self.seed, VISITS, node.partition, count)
        if self._workers is not None:
            reply, state = self._workers.visit(message, node.context, address)
        else:
            # The same content is often sent to many nodes, and some apps remove arrays from it.
            with preserved(), one_thread():
                reply, state = visit(self._app, *deepcopy((message, node.context)), address)
        if state is not None:
            node.context.state = state
        vars(reply.metadata)["_message_id"] = f"{message.metadata.message_id}-reply"
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        with self._lock:
            ready = [i for i in message_ids if i in self._replies and self._replies[i].done()]
            return [self._replies.pop(i).result() for i in ready]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        ids = list(self.push_messages(messages))
        wait([self._replies[i] for i in ids], timeout)
        return self.pull_messages(ids)


def run_flower(
    server_app: ServerApp,
    client_app: ClientApp,
    *,
    nodes: int,
    run_config: Mapping[str, UserConfigValue] | None = None,
    **options: Any,
) -> Context:
    """Run a Flower app; returns the server's final context.

    options: see `LocalGrid`.
    """
    check(isinstance(server_app, ServerApp), f"expected a ServerApp, got {server_app!r:.80}.")
    with LocalGrid(client_app, nodes, run_config=run_config, **options) as grid:
        run_id = grid.run.run_id
        context = Context(run_id, SUPERLINK_NODE_ID, {}, RecordDict(), dict(run_config or {}))
        server_app(grid=grid, context=context)
    return context


def _ids(seed: int, count: int) -> list[int]:
    """Distinct 63-bit numbers; the first ones do not depend on the count."""
    draws, ids = rng("flower", seed, NODE_IDS), dict[int, None]()
    while len(ids) < count:
        ids[int(draws.integers(1, 2**63))] = None
    return list(ids)


def _done(message: Message) -> Future[Message]:
    future: Future[Message] = Future()
    future.set_result(message)
    return future


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
        self.threads = ThreadPoolExecutor(workers)  # one per worker
        self._all: set[Worker] = set()
        self._idle: SimpleQueue[Worker] = SimpleQueue()
        try:
            for worker in [self._started() for _ in range(workers)]:  # at the same time
                self._await(worker)
                self._idle.put(worker)
        except BaseException:
            self.close()
            raise

    def _started(self) -> Worker:
        worker = Worker(__name__)
        self._all.add(worker)
        worker.send({}, self._app)
        return worker

    def _await(self, worker: Worker) -> None:
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
            worker.send({"address": list(address)}, *to_bytes(message, context))
            ((_, parts),) = worker.receive()
        except Exited as exited:
            end([worker])
            self._all.discard(worker)
            worker = self._started()
            self._await(worker)
            return failed(message, ErrorCode.UNKNOWN, exited), None
        finally:
            self._idle.put(worker)
        reply, changed = from_bytes(*parts)
        return reply, None if changed is None else changed.state

    def close(self) -> None:
        """End the processes; pending messages are dropped."""
        self.threads.shutdown(wait=True, cancel_futures=True)
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
            message, context = from_bytes(*parts)
            assert context is not None
            reply, state = visit(app, message, context, header["address"])
            try:
                answer = to_bytes(reply, None if state is None else context)
            except Exception as error:  # a record that Flower cannot serialise
                answer = to_bytes(failed(message, ErrorCode.UNKNOWN, error))
            parent.send({}, *answer)

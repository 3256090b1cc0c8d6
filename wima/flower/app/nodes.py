"""The connected nodes of a grid, which client each of them is, and how long to wait for them."""

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from wima.core.errors import RunError, check_count, check_range, check_rate, check_switch
from wima.core.randomness import rng
from wima.flower.arrays import entry
from wima.storage.files import replace_text

log = logging.getLogger(__name__)
LONGEST_PAUSE = 0.5  # seconds between polls for replies
INTRODUCTION = 10.0  # seconds that nodes have in a server's first round to say who they are


@dataclass(frozen=True, kw_only=True)
class Options:
    """How long to wait for nodes, and which of their updates to accept.

    start_nodes: connected nodes that the first round waits for; 0: one per client.
    min_nodes: connected nodes that every round waits for.
    wait_seconds: how long to wait for them before the run fails.
    round_seconds: how long a round waits for replies; later ones are left out of the round.
    largest_norm: an update is invalid if its norm is more than this many times the median.
    most_examples: the largest number of examples that a client counts with; 0: its number in the
    data set of the settings.
    robust: leave out invalid updates and log a warning; if false, an invalid update ends the run.
    """

    start_nodes: int = 0
    min_nodes: int = 1
    wait_seconds: float = 600.0
    round_seconds: float = 600.0
    largest_norm: float = 1000.0
    most_examples: int = 0
    robust: bool = True

    def __post_init__(self) -> None:
        check_count("start-nodes", self.start_nodes, least=0)
        check_count("min-nodes", self.min_nodes)
        check_rate("wait-seconds", self.wait_seconds)
        check_rate("round-seconds", self.round_seconds)
        check_switch("robust", self.robust)
        check_range("largest-norm", self.largest_norm, above=1)
        check_count("most-examples", self.most_examples, least=0)


class Nodes:
    """Keeps track of nodes as they connect and disconnect, and exchanges messages with them.

    If several nodes claim to be the same client, the first takes part; a later one takes part only
    while the earlier ones are disconnected.  file: stores that order across server restarts.
    """

    def __init__(self, grid: Grid, clients: int, options: Options, file: Path) -> None:
        self._grid, self._clients, self._options, self._file = grid, clients, options, file
        claims = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        self._claims: dict[int, int] = dict(claims)  # node -> client, in the order of their claims
        self._client: dict[int, int] = {}  # node -> client
        self._asked: dict[str, int] = {}  # message that asks a node for its client -> node
        self._late: dict[str, int] = {}  # message that timed out in its round -> node
        self._refused: set[int] = set()  # nodes that are not a client of this run
        self._begun = False

    def cohort(self, seed: int, t: int, size: int) -> list[int]:
        """The clients of round t, drawn from those connected; if all are, as in a simulation."""
        self._wait(t)
        there = sorted(self.connected())
        drawn = rng("cohort", seed, t).choice(len(there), min(size, len(there)), replace=False)
        return sorted(there[k] for k in drawn.tolist())

    def connected(self) -> dict[int, int]:
        """Client -> node, for the clients that can train."""
        busy = {*self._late.values(), *self._asked.values()}
        first: dict[int, int] = {}
        for node, client in self._claims.items():
            if node in self._client or node in busy:
                first.setdefault(client, node)
        return {client: node for client, node in first.items() if node not in busy}

    def ask(self, messages: list[Message]) -> tuple[dict[int, Message], dict[int, str]]:
        """Send messages; returns the replies in time by node, and why other nodes are lost.

        Nodes that leave are not waited for.
        """
        waiting = self._push(messages)
        replies: dict[int, Message] = {}
        lost: dict[int, str] = {}

        def all_settled() -> bool:
            for node, reply in self._pull(waiting):
                if reply.has_error():
                    lost[node] = f"it failed: {reply.error.reason:.200}"
                else:
                    replies[node] = reply
            left = _without_left(waiting, self._grid.get_node_ids())
            lost.update(dict.fromkeys(left, "it left"))
            return not waiting

        self._until(all_settled, self._options.round_seconds)
        for node in waiting.values():
            lost[node] = f"no reply within {self._options.round_seconds:g} s"
        self._late |= waiting
        return replies, lost

    def _wait(self, t: int) -> None:
        """Wait until enough nodes are connected and have said which client they are."""
        if not self._begun:
            self._until(self._refresh, INTRODUCTION)
            self._begun = True
        enough = self._options.min_nodes if t else self._options.start_nodes or self._clients

        def look() -> bool:
            self._refresh()
            return len(self.connected()) >= enough

        if not self._until(look, self._options.wait_seconds):
            raise RunError(
                f"Waited {self._options.wait_seconds:g} s for {enough} nodes, but "
                f"{len(self.connected())} are connected; start more, or lower min-nodes or "
                "start-nodes."
            )

    def _refresh(self) -> bool:
        """Update the connected nodes, ask new ones which client they are, and drop late replies.

        Returns whether all have said who they are.
        """
        there = set(self._grid.get_node_ids())
        for waiting in (self._asked, self._late):
            _without_left(waiting, there)
        for node in set(self._client) - there:
            log.warning("Node %d (client %d) left.", node, self._client.pop(node))
        self._refused &= there
        new = there - set(self._client) - set(self._asked.values()) - self._refused
        if new:
            questions = [Message(RecordDict(), n, MessageType.QUERY) for n in sorted(new)]
            self._asked |= self._push(questions)
        for node, reply in self._pull(self._asked):
            self._introduce(node, reply)
        for node, _ in self._pull(self._late):
            log.warning("Node %d replied after the time limit; its update is not used.", node)
        return not self._asked

    def _introduce(self, node: int, reply: Message) -> None:
        """Note which client a node says it is."""
        try:
            if reply.has_error():
                raise ValueError(reply.error.reason)
            client = entry(reply.content.config_records["who"], "client", int)
            if not 0 <= client < self._clients:
                raise ValueError(f"client {client} is not in 0 ... {self._clients - 1}")
        except (KeyError, TypeError, ValueError) as error:
            log.warning("Node %d did not say which client it is: %s", node, error)
            self._refused.add(node)
            return
        self._client[node] = client
        if self._claims.get(node) != client:
            self._claims.pop(node, None)  # so that it comes last
            self._claims[node] = client
            replace_text(self._file, json.dumps(list(self._claims.items())))
        first = next(n for n, c in self._claims.items() if c == client)
        if first != node:
            log.warning(
                "Node %d claims to be client %d, as node %d did before; it takes part only while "
                "that node is disconnected.",
                *(node, client, first),
            )

    def _push(self, messages: list[Message]) -> dict[str, int]:
        """Send messages; returns id -> node for those that were sent."""
        ids = [number for number in self._grid.push_messages(messages) if number]
        # Flower's grids write the id into the message; they skip messages that cannot be sent.
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        return {number: nodes[number] for number in ids}

    def _pull(self, waiting: dict[str, int]) -> Iterable[tuple[int, Message]]:
        """The replies that have arrived, with their nodes; removes them from `waiting`."""
        if not waiting:
            return []
        replies = list(self._grid.pull_messages(list(waiting)))
        answered = [(waiting.pop(r.metadata.reply_to_message_id, None), r) for r in replies]
        return [(node, reply) for node, reply in answered if node is not None]

    def _until(self, fact: Callable[[], bool], seconds: float) -> bool:
        """Poll until `fact` holds; returns whether it did in time."""
        end, pause = time.monotonic() + seconds, 0.005
        while not fact():
            now = time.monotonic()
            if now >= end:
                return False
            time.sleep(min(pause, end - now))
            pause = min(2 * pause, LONGEST_PAUSE)
        return True


def _without_left(waiting: dict[str, int], there: Iterable[int]) -> set[int]:
    """Remove the messages to nodes that have left; returns these nodes."""
    left = set(waiting.values()) - set(there)
    for message in [message for message, node in waiting.items() if node in left]:
        del waiting[message]
    return left

"""The ClientApp of every algorithm."""

import logging

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from wima.core.errors import RunError, check, is_count

log = logging.getLogger(__name__)
client_app = ClientApp()
"""The ClientApp of every algorithm: one client of the federation, on its own node.

A node's configuration has `partition-id`, the number of its client; `data`, a file with the
client's own examples, used instead of its part of the run's data set; `memory`, a folder in which
the client's memory outlives the run; and `files=true`, with which the node opens files that the
server's settings name.
"""


def client_of(context: Context) -> int:
    """The number of the node's client."""
    number = context.node_config.get("partition-id")
    check(
        is_count(number, 0),
        "The node's configuration must contain partition-id, the number of its client (0, 1, ...), "
        f"got {number!r}; start it with --node-config 'partition-id=0'.",
    )
    assert isinstance(number, int)
    return number


@client_app.query()
def who(message: Message, context: Context) -> Message:
    """Report which client this node is.  Each node is asked once; the reply needs no torch."""
    answer = ConfigRecord({"client": client_of(context)})
    return Message(RecordDict({"who": answer}), reply_to=message)


def _answer(message: Message, context: Context, *, train: bool) -> Message:
    """The reply of this client; why it fails stays here, since errors may quote files."""
    from wima.flower.app.visit import Refused, full_gradient, visit

    client = client_of(context)
    solve = visit if train else full_gradient
    try:
        return Message(solve(message.content, context, client), reply_to=message)
    except Refused:
        raise
    except Exception as error:
        log.exception("Client %d failed.", client)
        kind = type(error).__name__
        raise RunError(f"client {client} failed ({kind}); the log of its node says why") from None


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Solve the client's local problem of this round."""
    return _answer(message, context, train=True)


@client_app.train("gradient")
def gradient(message: Message, context: Context) -> Message:
    """The client's full gradient at w, which MIME needs before any client trains."""
    return _answer(message, context, train=False)

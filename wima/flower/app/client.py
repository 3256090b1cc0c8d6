"""The ClientApp of every algorithm."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from wima.core.errors import check, is_count

client_app = ClientApp()
"""The ClientApp of every algorithm: one client of the federation, on its own node.

A node's configuration has `partition-id`, the number of its client; `data`, a file with the
client's own examples, used instead of its part of the run's data set; and `memory`, a folder in
which the client's memory outlives the run.
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


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Solve the client's local problem of this round."""
    from wima.flower.app.visit import visit

    return Message(visit(message.content, context, client_of(context)), reply_to=message)


@client_app.train("gradient")
def gradient(message: Message, context: Context) -> Message:
    """The client's full gradient at w, which MIME needs before any client trains."""
    from wima.flower.app.visit import full_gradient

    return Message(full_gradient(message.content, context, client_of(context)), reply_to=message)

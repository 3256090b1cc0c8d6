"""All that we need of Flower and that is not part of its public API."""

from importlib.metadata import version

from flwr.app import Context, Message

from wima.core.errors import UsageError

TESTED = "1.38, 1.41 and 1.42"

try:
    from flwr.common.constant import SUPERLINK_NODE_ID as SUPERLINK_NODE_ID, ErrorCode as ErrorCode
    from flwr.common.serde import (
        context_from_proto,
        context_to_proto,
        message_from_proto,
        message_to_proto,
    )
    from flwr.proto.message_pb2 import Context as ContextProto, Message as MessageProto
    from flwr.supercore.run import Run as Run
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
except ImportError as error:
    raise UsageError(
        f"The grid of wima.flower was tested with flwr {TESTED}; this is flwr {version('flwr')}, "
        f"which has changed inside ({error}). Install a tested version: pip install 'flwr~=1.41.0'."
    ) from error


def to_bytes(message: Message, context: Context | None = None) -> list[bytes]:
    """The message, and the context if there is one, as Flower sends them."""
    parts = [message_to_proto(message).SerializeToString()]
    return parts if context is None else [*parts, context_to_proto(context).SerializeToString()]


def from_bytes(message: bytes, *contexts: bytes) -> tuple[Message, Context | None]:
    """What `to_bytes` wrote."""
    context = context_from_proto(ContextProto.FromString(contexts[0])) if contexts else None
    return message_from_proto(MessageProto.FromString(message)), context

"""Training and test data together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wima.data.federated import Array, FederatedData

if TYPE_CHECKING:
    from wima.data.transform import Transform


class Bundle(NamedTuple):
    """A data set ready for training and testing.

    Examples:
        >>> from wima.data.sets.digits import digits
        >>> digits(num_clients=20, alpha=0.0).train.num_clients
        20
    """

    train: FederatedData
    x_test: Array
    y_test: Array
    classes: int
    transform: Transform | None = None  # turns stored examples into model inputs
    kind: str = "classes"  # "characters": rows of character ids, targets one ahead
    test_clients: Array | None = None  # the client of each test example, -1 for none

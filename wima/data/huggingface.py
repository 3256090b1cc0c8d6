"""Hugging Face data sets with a column that names each example's client."""

from typing import Any

import numpy as np

from wima.core.errors import UsageError, check
from wima.data.federated import Array, FederatedData


def from_hugging_face(
    dataset: Any, *, client: str, x: str, y: str, classes: int | None = None
) -> FederatedData:
    """A `datasets.Dataset` as federated data, given the names of its client, x and y columns.

    Images become bytes with the channels first; numbers stay as they are.
    """
    names = list(getattr(dataset, "column_names", []))
    for column in (client, x, y):
        check(column in names, f"The data set has no column {column!r}; it has {', '.join(names)}.")
    formatted = dataset.with_format("numpy")
    examples, labels, clients = (_column(formatted, name) for name in (x, y, client))
    if examples.dtype == np.uint8 and examples.ndim >= 3:
        examples = examples[:, None] if examples.ndim == 3 else examples.transpose(0, 3, 1, 2)
    return FederatedData.from_arrays(examples, labels, clients, classes=classes)


def _column(dataset: Any, name: str) -> Array:
    values = dataset[:][name]
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    try:
        return np.stack([np.asarray(value) for value in values])
    except ValueError:
        raise UsageError(f"All examples in column {name!r} must have the same shape.") from None

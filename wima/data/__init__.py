"""Data sets split among clients: by name, or from a user's own .npz file."""

from __future__ import annotations

from collections.abc import Callable

from wima.data import digits
from wima.data.federated import Bundle, FederatedData
from wima.data.files import load_npz
from wima.errors import unknown

__all__ = ["BY_NAME", "Bundle", "FederatedData", "load", "load_npz"]

BY_NAME: dict[str, Callable[[int, float | None, int], Bundle]] = {"digits": digits.digits}


def load(name: str, *, clients: int, alpha: float | None, seed: int) -> Bundle:
    """The data set of this name, or of this .npz file, which says itself who holds what."""
    if str(name).endswith(".npz"):
        return load_npz(name)
    if name not in BY_NAME:
        raise unknown("data set", name, BY_NAME)
    return BY_NAME[name](clients, alpha, seed)

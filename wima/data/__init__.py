"""Data sets split among clients: by name, or from a user's own .npz file."""

from __future__ import annotations

from wima.data.federated import Bundle, FederatedData
from wima.data.files import load_npz
from wima.data.load import SUMMARIES, load

__all__ = ["SUMMARIES", "Bundle", "FederatedData", "load", "load_npz"]

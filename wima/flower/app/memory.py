"""What a client remembers between visits, on its own node.

It is kept by visit: the memory after the last visit that the server counted, and after the newest
one.  The server says which of the two it knows.  So a client whose update was lost or rejected, or
whose server restarted, resumes from the memory that matches the server's state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from wima.algorithms.base import State
from wima.flower.app.records import to_arrays, to_tensors
from wima.storage.segments import Segments
from wima.storage.states import decode, encode

log = logging.getLogger(__name__)
ARRAYS, ABOUT = "wima.memory", "wima.visits"


class Kept(NamedTuple):
    """Memory as it was written: the structure for each visit, and the tensors by name."""

    about: dict[str, Any]
    tensor: Callable[[str], Tensor]


class NodeMemory:
    """A client's memory in the node's state; with a folder, also in a file that outlives it."""

    def __init__(self, records: RecordDict, folder: Path | None = None) -> None:
        self._records = records
        self._store = None if folder is None else Segments(folder)

    def read(self, visit: int, fresh: State) -> State:
        """The memory after the visit in that round; `fresh` if there was none (-1)."""
        if visit < 0 or fresh == ():
            return fresh
        for kept in (self._in_state(), self._in_file()):
            if kept is not None and str(visit) in kept.about:
                return decode(kept.about[str(visit)], fresh, kept.tensor, {})
        log.warning("The memory of the visit in round %d is lost; it is reinitialised.", visit + 1)
        return fresh

    def write(self, states: Mapping[int, State]) -> None:
        """Keep only the memory after these visits."""
        tensors: dict[str, Tensor] = {}
        about = {
            str(visit): encode(state, str(visit), tensors, {})
            for visit, state in states.items()
            if visit >= 0 and state != ()
        }
        if not about:
            return
        self._records[ARRAYS] = to_arrays(tensors)
        self._records[ABOUT] = ConfigRecord({"visits": json.dumps(about)})
        if self._store is not None:
            self._store.keep([self._store.write("memory", tensors, about)])

    def _in_state(self) -> Kept | None:
        arrays, about = self._records.get(ARRAYS), self._records.get(ABOUT)
        if not isinstance(arrays, ArrayRecord) or not isinstance(about, ConfigRecord):
            return None
        return Kept(json.loads(str(about["visits"])), to_tensors(arrays).__getitem__)

    def _in_file(self) -> Kept | None:
        store = self._store
        names = [] if store is None else store.names("memory")
        if store is None or not names:
            return None
        return Kept(store.about(names[-1]), lambda key: store.read(names[-1], key))

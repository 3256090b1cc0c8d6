"""The averages of a Flower server in files, so that a restarted server resumes its window.

The format is that of a run's checkpoints: a JSON manifest and immutable safetensors segments, with
checksums; the two newest states are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wima.averaging import Averager
from wima.core.errors import RunError, UsageError
from wima.flower.averages.models import Models
from wima.storage import manifests
from wima.storage.manifests import MALFORMED
from wima.storage.ring import Ring
from wima.storage.segments import Segments


def save(
    models: Models, store: Segments, extra: Mapping[str, Any], more: Mapping[str, Tensor]
) -> None:
    """Write everything that the next round depends on; `extra` is any JSON, `more` its tensors."""
    watch, layout = models.watch, models.layout
    if watch is None or layout is None:
        return
    newest = {f"newest {name}": torch.from_numpy(a) for name, a in models.newest.items()}
    tensors = {**newest, **more}
    rings: dict[str, Ring] = {}
    content = {
        "identity": _identity(models),
        "extra": dict(extra),
        "arrays": {"newest": list(models.newest), "averaged": list(layout.slices)},
        "averages": watch.encode(tensors, rings),
    }
    # Numbered by models, because round numbers start again when a server is restarted.
    manifests.save(store, models.seen, tensors, rings, **content)


def _identity(models: Models) -> dict[str, Any]:
    """What must match for a state to be resumed."""
    return {
        "averagers": {name: _shown(averager) for name, averager in models.averagers.items()},
        "classifier": list(models.classifier),
        "rounds": models.rounds,
    }


def _shown(averager: Averager) -> str:
    """The averager as text, without unset fields that version 0.1.0 did not have."""
    return repr(averager).replace(", buckets=None", "")


class Resumed(NamedTuple):
    """What was saved besides the models."""

    extra: dict[str, Any]
    tensor: Callable[[str], Tensor]


def restore(models: Models, store: Segments) -> Resumed | None:
    """Restore the models from the newest intact state in the folder; None if there is none."""
    found, wrong = manifests.find(store)
    if not found and wrong:
        raise RunError(f"No state in {store.folder} is intact: {'; '.join(wrong)}.")
    if not found:
        return None
    identity = found[0].identity
    models.rounds = identity.get("rounds") if models.rounds is None else models.rounds
    for key, asked in _identity(models).items():
        if identity.get(key) != asked:
            raise UsageError(
                f"{store.folder} contains averages with {key} = {identity.get(key)}, but got "
                f"{asked}; use the same, or another folder."
            )

    def tensor(name: str) -> Tensor:
        return store.read(found[0].content["vectors"], name)

    try:
        _restore(models, store, found[0].content, tensor)
    except MALFORMED as error:
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"The state in {store.folder} does not fit: {reason}") from error
    return Resumed(found[0].extra, tensor)


def _restore(
    models: Models, store: Segments, content: Mapping[str, Any], tensor: Callable[[str], Tensor]
) -> None:
    newest = {name: tensor(f"newest {name}").numpy() for name in content["arrays"]["newest"]}
    models.lay_out(content["arrays"]["averaged"], newest)
    models.newest = {name: np.array(array) for name, array in newest.items()}
    assert models.watch is not None
    models.watch.load(content, store, tensor)

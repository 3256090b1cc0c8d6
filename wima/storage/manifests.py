"""Manifests: which segments make up a saved state, with their checksums.

A manifest is a file such as `000000120.json`.  The two newest are kept, with the segments that they
need.  For large states, only what changed since the last manifest is written.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from wima.core.errors import RunError, UsageError
from wima.storage.files import read_text, replace_text
from wima.storage.ring import Ring
from wima.storage.segments import Segments

FORMAT = 1
NAME = re.compile(r"\d{9,18}\.json")  # other files in the folder are not ours
KEPT = 2  # manifests
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


class Saved(NamedTuple):
    """An intact manifest whose segments are all intact."""

    t: int
    identity: dict[str, Any]  # must match for the state to be used
    extra: dict[str, Any]  # added by the caller
    content: dict[str, Any]


def save(
    store: Segments,
    t: int,
    tensors: Mapping[str, Tensor],
    rings: Mapping[str, Ring],
    **content: Any,
) -> None:
    """Write a state after t updates as one manifest, then remove what is no longer needed.

    content: JSON that includes `identity`, `extra` and optionally `clients`, a list of segments.
    """
    vectors = store.write("vectors", tensors)
    saved = {n: {"count": r.count, "segments": r.save(store, "ring")} for n, r in rings.items()}
    manifest = {"format": FORMAT, "t": t, "clients": [], **content}
    manifest |= {"vectors": vectors, "rings": saved}
    manifest["sums"] = {name: store.sums[name] for name in segments_of(manifest)}
    write_manifest(store.folder / f"{t:09d}.json", manifest)
    paths, needed = manifests(store.folder), set[str]()
    for path in paths[:KEPT]:
        with contextlib.suppress(RunError, UsageError, *MALFORMED):
            needed.update(segments_of(read_manifest(path, FORMAT)))
    for path in paths[KEPT:]:
        with contextlib.suppress(OSError):
            path.unlink()
    store.keep(needed)


def segments_of(manifest: Mapping[str, Any]) -> list[str]:
    """The segments that a manifest needs."""
    rings = [name for ring in manifest["rings"].values() for name in ring["segments"]]
    return list(dict.fromkeys([manifest["vectors"], *rings, *manifest["clients"]]))


def discard_after(store: Segments, t: int) -> None:
    """Remove the manifests of later states, so that `save` does not keep them as the newest."""
    for path in manifests(store.folder):
        if int(path.stem) > t:
            path.unlink()


def manifests(folder: Path) -> list[Path]:
    """The manifests in a folder, newest first."""
    files = [path for path in folder.glob("*.json") if NAME.fullmatch(path.name)]
    return sorted(files, key=lambda path: int(path.stem), reverse=True)


def find(store: Segments) -> tuple[list[Saved], list[str]]:
    """Intact states, newest first, and what is wrong with the others."""
    found, wrong = [], []
    for path in manifests(store.folder):
        try:
            content = read_manifest(path, FORMAT)
            for name in segments_of(content):
                store.verify(name, content["sums"][name])
            t, identity, extra = (content[key] for key in ("t", "identity", "extra"))
            found.append(Saved(int(t), dict(identity), dict(extra), content))
        except RunError as error:
            wrong.append(str(error))
        except MALFORMED as error:
            wrong.append(f"{path} is damaged: {type(error).__name__}: {error}")
    return found, wrong


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write JSON and its checksum, replacing the file; its segments must already be on disk."""
    body = json.dumps(manifest)
    replace_text(path, f"{body}\n{_checksum(body)}\n")


def read_manifest(path: Path, number: int) -> dict[str, Any]:
    """Read a manifest; raise an error unless it is intact and has this format number."""
    try:
        body, checksum, end = read_text(path).split("\n")
        manifest = json.loads(body)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is damaged: {error}") from None
    if checksum != _checksum(body) or end or not isinstance(manifest, dict):
        raise RunError(f"{path} is damaged: its checksum is wrong")
    if manifest.get("format") != number:
        raise UsageError(
            f"{path} has format {manifest.get('format')!r}; this version of wima reads {number}."
        )
    return manifest


def _checksum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()

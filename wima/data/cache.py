"""The data cache: published files are downloaded and read once, and kept as arrays.

    <cache>/raw/NAME/         the downloaded files
    <cache>/ready/NAME/       x.npy, y.npy, x_test.npy, y_test.npy, ... and meta.json

The cache is `$WIMA_DATA`, or a folder in the user's own cache.  A folder under `ready` is complete:
it is written under another name and then renamed.  Arrays are mapped from disk.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import DownloadColumn

from wima.core.errors import UsageError, check
from wima.core.progress import progress_bar
from wima.data.federated import Array, check_labels, numbered, open_mapped
from wima.data.transform import Transform
from wima.storage.files import digest, read_text, written


class Remote(NamedTuple):
    """A published file."""

    name: str
    url: str
    digest: str | None = None  # "md5:..." or "sha256:..."
    size: int | None = None


class RawData(NamedTuple):
    """The arrays of a data set as its loader reads them."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    classes: int
    clients: Array | None = None  # the client of each training example, if the data set defines it
    groups: Array | None = None  # coarse labels of the training examples
    test_clients: Array | None = None  # the client of each test example


@dataclass(frozen=True)
class DataSet:
    """A public data set: where its files are, how to read them, how models see it."""

    name: str
    terms: str
    files: tuple[Remote, ...]
    read: Callable[[Path], RawData]  # a file or folder -> arrays
    transform: Callable[..., Transform]
    kind: str = "classes"  # or "characters"
    expects: str = ""  # what `wima data import` accepts
    remark: str = ""  # shown if it cannot be downloaded
    labels: tuple[str, ...] = ()  # the names of its classes
    clients: int | None = None  # how many the complete data set has, if it defines them


def cache() -> Path:
    """The folder of the data cache."""
    if chosen := os.environ.get("WIMA_DATA"):
        return Path(chosen).expanduser()
    import pooch  # type: ignore[import-untyped]  # it takes 0.2 s, in workers too

    return Path(pooch.os_cache("wima"))


def ready(name: str) -> Path:
    """The folder of a data set's arrays."""
    return cache() / "ready" / name


def raw(name: str) -> Path:
    """The folder of a data set's downloaded files."""
    return cache() / "raw" / name


class _Bar:
    """A rich progress bar with the four methods that pooch calls."""

    def __init__(self, name: str) -> None:
        self._progress = progress_bar(name, DownloadColumn(), width=40)
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, value: float) -> None:
        self._progress.update(self._task, total=value)

    def update(self, amount: int) -> None:
        self._progress.update(self._task, advance=amount)

    def reset(self) -> None:
        self._progress.reset(self._task)

    def close(self) -> None:
        self._progress.stop()


def fetch(name: str, files: tuple[Remote, ...], expects: str, remark: str = "") -> Path:
    """Download the missing files of a data set; return their folder.

    pooch renames a file once its checksum is right, so a file with its final name is complete.
    """
    import pooch

    folder = raw(name)
    for remote in files:
        if is_intact(folder / remote.name, remote):
            continue
        bar: Any = _Bar(remote.name)
        web = pooch.HTTPDownloader(progressbar=bar, timeout=30)
        try:
            pooch.retrieve(remote.url, remote.digest, remote.name, folder, downloader=web)
            continue
        except OSError as error:  # errors of the network are OSErrors too
            problem = f"cannot be downloaded: {error}"
        except ValueError as error:  # a wrong checksum
            problem = f"is not the published file: {error}"
        finally:
            bar.close()
        raise UsageError(
            f"{remote.url} {problem}\nWithout network access: download {expects} on another "
            f"machine, then copy it to {folder} or run `wima data import {name} PATH`."
            + f"\n{remark}"
            * bool(remark)
        )
    return folder


def is_intact(path: Path, remote: Remote) -> bool:
    """Whether the file exists, with the published size and checksum."""
    if not path.is_file():
        return False
    if remote.size is not None and path.stat().st_size != remote.size:
        return False
    if remote.digest is None:
        return True
    algorithm, _, published = remote.digest.rpartition(":")
    return digest(path, algorithm or "sha256") == published


def open_sqlite(path: Path) -> sqlite3.Connection:
    """Open a published SQLite file for reading."""
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def prepare(dataset: DataSet, source: Path) -> Path:
    """Read the publisher's files and store them as arrays, all or none."""
    check(source.exists(), f"{source}: no such file or folder; expected {dataset.expects}.")
    try:
        data = dataset.read(source)
        check_raw_data(data, source)
    except UsageError:
        raise
    except Exception as error:  # damaged bytes can raise anything in readers
        reason = f"{type(error).__name__}: {error!s:.200}"
        raise UsageError(
            f"{source}: damaged, or not {dataset.expects}: {reason}; download it again."
        ) from None
    final = ready(dataset.name)
    with written(final, folder=True, over=True, kind=UsageError) as draft:
        _write(data, draft)
    return final


def check_raw_data(data: RawData, source: Path) -> None:
    """Raise, naming the file, unless the loader returned examples with valid labels."""
    parts = (("training", data.x, data.y), ("test", data.x_test, data.y_test))
    for kind, x, y in parts:
        where = f"{source}: {kind} data"
        check(len(x) > 0, f"{where} have no examples.")
        check(len(x) == len(y), f"{where} have {len(x)} examples but {len(y)} labels.")
        try:
            check_labels(y, data.classes, "label")
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None


def _write(data: RawData, folder: Path) -> None:
    """Write the arrays sorted by client, with a checksum for each."""
    arrays = {"x": data.x, "y": data.y, "x_test": data.x_test, "y_test": data.y_test}
    if data.groups is not None:
        arrays["groups"] = data.groups
    names: list[str] | None = None
    if data.clients is not None:
        unique, client, sizes = np.unique(data.clients, return_inverse=True, return_counts=True)
        order = np.argsort(client, kind="stable")
        for key in set(arrays) & {"x", "y", "groups"}:
            arrays[key] = arrays[key][order]
        arrays["offsets"] = np.concatenate([[0], np.cumsum(sizes)])
        names = [str(name) for name in unique]
        if data.test_clients is not None:
            arrays["test_clients"] = numbered(data.test_clients, unique)
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", np.ascontiguousarray(array), allow_pickle=False)
    digests = {key: digest(folder / f"{key}.npy") for key in arrays}
    meta = {"classes": data.classes, "names": names, "sha256": digests}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


class Ready(NamedTuple):
    """A data set's arrays, mapped from disk."""

    arrays: dict[str, Array]
    meta: dict[str, Any]


def open_ready(name: str) -> Ready:
    """Map a data set's arrays, read-only."""
    folder = ready(name)
    try:
        meta = _meta(folder)
        arrays = {key: open_mapped(folder / f"{key}.npy") for key in meta["sha256"]}
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        raise UsageError(
            f"The data cache {folder} is damaged ({error}); remove the folder and try again."
        ) from None
    return Ready(arrays, meta)


def damaged(name: str) -> list[str]:
    """The files of a data set's cache that have changed since they were written."""
    folder = ready(name)
    changed = []
    for key, expected in _meta(folder)["sha256"].items():
        path = folder / f"{key}.npy"
        if not path.is_file() or digest(path) != expected:
            changed.append(str(path))
    return changed


def _meta(folder: Path) -> dict[str, Any]:
    meta = json.loads(read_text(folder / "meta.json"))
    return {"classes": int(meta["classes"]), "names": meta["names"], "sha256": dict(meta["sha256"])}

"""The data cache: published files are downloaded and read once, and kept as arrays.

    <cache>/raw/NAME/         the downloaded files
    <cache>/ready/NAME/       x.npy, y.npy, x_test.npy, y_test.npy, ... and meta.json

The cache is `$WIMA_DATA`, or a folder in the user's own cache.  A folder under `ready` is complete:
it is written under another name and then renamed.  Arrays are mapped from disk.
"""

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
from wima.data.federated import Array, check_labels, numbered, open_mapped, read_meta
from wima.data.transform import Transform
from wima.storage.files import digest, written


class Remote(NamedTuple):
    """A published file."""

    url: str
    digest: str | None = None  # "md5:..." or "sha256:..."

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


class RawData(NamedTuple):
    """The arrays of a data set as its loader reads them."""

    x: Array
    y: Array
    x_test: Array
    y_test: Array
    classes: int
    clients: Array | None = None  # the client of each training example, if the data set defines it
    groups: Array | None = None  # coarse labels of the training examples, for our own split
    test_clients: Array | None = None  # the client of each test example


@dataclass(frozen=True)
class DataSet:
    """A public data set: where its files are, how to read them, how models see it."""

    name: str
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
    """A progress bar for pooch, which sets `total` at the start."""

    total: float | None = None

    def __init__(self, name: str) -> None:
        self._progress = progress_bar(name, DownloadColumn(), width=40)
        self._task = self._progress.add_task(name, total=None)
        self._progress.start()

    def update(self, amount: int) -> None:
        self._progress.update(self._task, total=self.total, advance=amount)

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
        if is_intact(folder / remote.name, remote.digest):
            continue
        bar: Any = _Bar(remote.name)
        web = pooch.HTTPDownloader(progressbar=bar, timeout=30)
        try:
            pooch.retrieve(remote.url, remote.digest, remote.name, folder, downloader=web)
        except (OSError, ValueError) as error:
            is_other = not isinstance(error, OSError)  # which errors of the network are too
            problem = "is not the published file" if is_other else "cannot be downloaded"
            raise UsageError(
                f"{remote.url} {problem}: {error}\nWithout network access: download {expects} on "
                f"another machine, then copy it to {folder} or run `wima data import {name} PATH`."
                + f"\n{remark}"
                * bool(remark)
            ) from None
        finally:
            bar.close()
    return folder


def is_intact(path: Path, published: str | None) -> bool:
    """Whether the file exists, with the published checksum ("md5:..."), if there is one."""
    if published is None or not path.is_file():
        return path.is_file()
    algorithm, _, expected = published.partition(":")
    return digest(path, algorithm) == expected


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
    with written(ready(dataset.name), folder=True, over=True, kind=UsageError) as draft:
        _write(data, draft)
    return ready(dataset.name)


def fetch_and_prepare(dataset: DataSet) -> Path:
    """Download a data set and store its arrays."""
    return prepare(dataset, fetch(dataset.name, dataset.files, dataset.expects, dataset.remark))


def check_raw_data(data: RawData, source: Path) -> None:
    """Raise, naming the file, unless the loader returned examples with valid labels."""
    parts = (("training", data.x, data.y), ("test", data.x_test, data.y_test))
    for kind, x, y in parts:
        where = f"{source}: {kind} data"
        check(len(x) > 0, f"{where} have no examples.")
        check(len(x) == len(y), f"{where} have {len(x)} examples but {len(y)} labels.")
        check_labels(y, data.classes, f"{where}: label")


def _write(data: RawData, folder: Path) -> None:
    """Write the arrays sorted by client, with a checksum for each."""
    arrays = {"x": data.x, "y": data.y, "x_test": data.x_test, "y_test": data.y_test}
    if data.groups is not None:
        arrays["groups"] = data.groups
    names: list[str] | None = None
    if data.clients is not None:
        unique, client, sizes = np.unique(data.clients, return_inverse=True, return_counts=True)
        order = np.argsort(client, kind="stable")
        arrays |= {"x": data.x[order], "y": data.y[order]}
        arrays["offsets"] = np.concatenate([[0], np.cumsum(sizes)])
        names = [str(name) for name in unique]
        if data.test_clients is not None:
            arrays["test_clients"] = numbered(data.test_clients, unique)
    for key, array in arrays.items():
        np.save(folder / f"{key}.npy", np.ascontiguousarray(array), allow_pickle=False)
    digests = {key: digest(folder / f"{key}.npy") for key in arrays}
    meta = {"classes": data.classes, "names": names, "sha256": digests}
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def open_ready(name: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """A data set's arrays, mapped from disk, and what is known of them."""
    folder = ready(name)
    try:
        meta = read_meta(folder, "classes", "names", "sha256")
        return {key: open_mapped(folder / f"{key}.npy") for key in meta["sha256"]}, meta
    except UsageError as error:
        raise UsageError(
            f"The data cache {folder} is damaged ({error}); remove the folder and try again."
        ) from None

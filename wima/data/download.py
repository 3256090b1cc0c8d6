"""Fetching publishers' files: checked, atomic, with a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import DownloadColumn

from wima.core.errors import UsageError
from wima.core.progress import progress_bar
from wima.data.cache import Remote, raw
from wima.storage.files import digest


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


def fetch(name: str, files: tuple[Remote, ...], expects: str) -> Path:
    """Download the missing files of a data set; return their folder.

    pooch renames a file once its checksum is right, so a file with its final name is complete.
    """
    folder = raw(name)
    missing = [remote for remote in files if not is_intact(folder / remote.name, remote)]
    advice = (
        f"Without network access: download {expects} on another machine, then copy it to {folder} "
        f"or run `wima data import {name} PATH`."
    )
    for remote in missing:
        _download(remote, folder, advice)
    return folder


def _download(remote: Remote, folder: Path, advice: str) -> None:
    import pooch  # type: ignore[import-untyped]  # imported here: takes 0.2 s, in workers too
    import requests

    bar: Any = _Bar(remote.name)
    try:
        pooch.retrieve(
            remote.url,
            known_hash=remote.digest,
            fname=remote.name,
            path=folder,
            downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
        )
    except (requests.RequestException, OSError) as error:
        raise UsageError(f"{remote.url} cannot be downloaded: {error}\n{advice}") from None
    except ValueError as error:  # a wrong checksum
        raise UsageError(f"{remote.url} is not the published file: {error}\n{advice}") from None
    finally:
        bar.close()


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

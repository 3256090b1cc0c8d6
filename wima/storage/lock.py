"""At most one process at a time works on a run."""

from __future__ import annotations

import fcntl
from pathlib import Path

from wima.core.errors import RunError, UsageError
from wima.storage.files import cannot_write


class Lock:
    """At most one process at a time works on a run.  The system lets go of it with its owner."""

    def __init__(self, folder: Path) -> None:
        try:
            self._file = (folder / "lock").open("a")
        except OSError as error:
            raise cannot_write(folder / "lock", error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(
                f"Another process is working on {folder}; wait for it, or end it."
            ) from None

    def release(self) -> None:
        self._file.close()


def is_running(folder: Path) -> bool:
    """Whether a process holds the run's lock."""
    try:
        Lock(folder).release()
    except UsageError:
        return True
    except RunError:
        return False
    return False

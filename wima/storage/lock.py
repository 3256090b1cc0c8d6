"""At most one process at a time works on a run."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from wima.core.errors import RunError, UsageError
from wima.storage.files import cannot_write


class Lock:
    """Held by the process that works on a folder; the system releases it when the process ends."""

    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / "lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise UsageError(
                f"Another process is working on {folder}; wait until it ends, or stop it."
            ) from None
        except OSError as error:
            raise cannot_write(folder / "lock", error) from error

    def release(self) -> None:
        self._lock.release()


def is_running(folder: Path) -> bool:
    """Whether a process holds the run's lock."""
    if not folder.is_dir():  # filelock would create it
        return False
    try:
        Lock(folder).release()
    except UsageError:
        return True
    except RunError:
        return False
    return False

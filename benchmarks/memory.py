"""Resident memory of a process and all its descendants, from /proc."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
EVERY = 0.2  # seconds between samples
REFRESH = 10  # samples between looks for new processes, which cost more


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name of the program, in brackets, may hold spaces; the parent comes after it.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def resident(pids: list[int]) -> int:
    """The sum of the resident sets, in bytes; pages shared by several processes count in each."""
    return sum(_pages(pid)[0] for pid in pids) * PAGE


def anonymous(pids: list[int]) -> int:
    """The part of it that is no page of a file (programs, mapped data) and not shared."""
    return sum(all_ - shared for all_, shared in map(_pages, pids)) * PAGE


def _pages(pid: int) -> tuple[int, int]:
    """Resident pages of a process, and those of them that belong to files or are shared."""
    try:
        _, all_, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    except OSError:  # it has ended
        return 0, 0
    return all_, shared


class Peak:
    """The largest resident memory of a tree of processes while this context is open.

    `anonymous` is what was resident and no page of a file when the context closed.
    """

    def __init__(self, root: int) -> None:
        self.bytes, self.anonymous, self._root = 0, 0, root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        count, pids = 0, tree(self._root)
        while not self._over.wait(EVERY):
            count += 1
            if count % REFRESH == 0:
                pids = tree(self._root)
            self.bytes = max(self.bytes, resident(pids))

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        pids = tree(self._root)
        self.bytes, self.anonymous = max(self.bytes, resident(pids)), anonymous(pids)

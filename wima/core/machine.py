"""The machine's processor, memory and cores; reserving file space."""

from __future__ import annotations

import contextlib
import os
import platform
from math import ceil
from pathlib import Path

from wima.core.cgroups import cores_allowed, memory_left


def processor() -> str:
    """The name of the CPU."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def memory_available() -> float:
    """Bytes that this process can still allocate; infinity if unknown."""
    free = float("inf")
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable"):
                free = 1024.0 * int(line.split()[1])
    return min(free, memory_left())


def cores() -> int:
    """Cores that this process may use, given its affinity and control groups."""
    affine = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    return max(1, ceil(min(count, cores_allowed())))


def reserve(descriptor: int, size: int) -> None:
    """Allocate `size` bytes for an open file now, so that a full disk raises an error here."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:  # macOS
        os.truncate(descriptor, size)

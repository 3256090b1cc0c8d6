"""The machine's processor, memory and cores; file space, freed memory, standard streams."""

import contextlib
import ctypes
import os
import platform
import re
import sys
from collections.abc import Iterator
from math import ceil
from pathlib import Path


def processor() -> str:
    """The name of the CPU."""
    found = re.search(r"^model name\s*:(.*)", _text(Path("/proc/cpuinfo")), re.MULTILINE)
    return found[1].strip() if found else platform.processor()


def memory_available() -> float:
    """Bytes that this process can still allocate; infinity if unknown."""
    found = re.search(r"^MemAvailable:\s*(\d+)", _text(Path("/proc/meminfo")), re.MULTILINE)
    return min(1024.0 * int(found[1]) if found else UNLIMITED, memory_left())


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


def keep_freed_memory() -> None:
    """Raise glibc's thresholds in this process, unless its environment sets them.

    Training frees and allocates vectors of the same size all the time; returned to the system, they
    would be zeroed at each allocation.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 2**25)  # bytes; the maximum that glibc accepts
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)


def open_streams() -> None:
    """Open closed standard streams on /dev/null: what is printed must not go into our files.

    Without this, the next file or shared memory to be opened would get their descriptors.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
    for name in ("stdin", "stdout", "stderr"):  # later: these files must not take their places
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
OWN, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
UNLIMITED = float("inf")


def memory_left() -> float:
    """Bytes that this process can still allocate."""
    return min(map(_memory_left, _groups("memory")), default=UNLIMITED)


def cores_allowed() -> float:
    """CPU seconds per second; may be a fraction."""
    return min(map(_cores_allowed, _groups("cpu")), default=UNLIMITED)


def _groups(controller: str) -> Iterator[Path]:
    """The groups that this process belongs to, innermost first."""
    for line in _text(OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controller if controllers else GROUPS  # version 2 names no controllers
        group = root / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(root))


def _memory_left(group: Path) -> float:
    """Inactive cached files count as free, because the kernel can drop them."""
    limits = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limit = min(_number(group / name) for name in limits)
    used = min(_number(group / name) for name in ("memory.current", "memory.usage_in_bytes"))
    if UNLIMITED in (limit, used):
        return UNLIMITED
    counts = dict(line.split(maxsplit=1) for line in _text(group / "memory.stat").splitlines())
    cached = int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
    return max(0.0, limit - max(0.0, used - cached))


def _cores_allowed(group: Path) -> float:
    old = (group / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
    text = _text(group / "cpu.max") or " ".join(map(_text, old))
    try:
        quota, period = map(int, text.split())
    except ValueError:  # "max", or no such files
        return UNLIMITED
    return quota / period if quota > 0 else UNLIMITED  # -1: no limit


def _number(path: Path) -> float:
    text = _text(path).strip()
    return float(text) if text.isdecimal() else UNLIMITED  # "max", or no such file


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")
    return ""

"""`wima average` on files: its time against that of reading them, its memory, and its result.

Each case runs in a process of its own, from the command to its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from benchmarks.drive import ROOT
from benchmarks.micro import micro_result
from benchmarks.report import number
from wima.averaging import WIMA, Averages

FILES, WINDOWS = 100, (100, 50)
SHAPES = {"embedding": (2000, 1000), "a": (1000, 1000), "b": (1000, 1000), "c": (1000, 1000)}
BLOCK = 2**20
ENDINGS = ("safetensors", "npz", "pt")
# Not getrusage: its peak is at least that of the process that started the command.
TELLING = """
import atexit, sys, time
atexit.register(lambda: print(time.process_time(), open("/proc/self/status").read()))
exec(sys.argv.pop(1))
"""
TELLS = [sys.executable, "-c", TELLING]


def measure(turns: int, files: int = FILES, shapes: dict[str, Any] = SHAPES) -> dict[str, Any]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        loops = _make(folder, files, shapes)
        rows = [_case(folder, ending, cold, turns) for ending in ENDINGS for cold in (True, False)]
        alone = _run([*TELLS, "import torch"])
        rows.append(["none: `import torch`", "", "", "", *_shown([alone])])
        equal = {window: _equal(folder, window, w, shapes) for window, w in loops.items()}
    columns = ["files", "page cache", "reading alone, s", "`wima average`, s"]
    columns += ["of it CPU, s", "peak memory, MB"]
    tables = [{"columns": columns, "rows": rows}]
    largest = max(4 * int(np.prod(shape)) for shape in shapes.values()) / 1e6
    numbers = sum(int(np.prod(shape)) for shape in shapes.values())
    told = ", ".join(f"W = {w}: {'equal' if e else 'different'}" for w, e in equal.items())
    text = (
        f"The mean of {files} checkpoints of {numbers:,} float32 numbers each, the largest tensor "
        f"{largest:.3g} MB; medians of {turns}, start-up included; memory is the peak resident set "
        "of the process, libraries included. Reading alone: all bytes of the files, one process. "
        f"The result compared bit for bit with `WIMA` in the loop over the same models: {told}."
    )
    return micro_result("average_files", "Averaging saved checkpoints", text, tables)


def _make(folder: Path, files: int, shapes: dict[str, Any]) -> dict[int, torch.Tensor]:
    """A random walk, saved at every step in every format; the averages of a loop over it."""
    draw = torch.Generator().manual_seed(0)
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    w = torch.randn(sum(sizes), generator=draw)
    windows = [min(window, files) for window in WINDOWS]
    watch = Averages({str(window): WIMA(window) for window in windows}, w)
    for step in range(1, files + 1):
        w += 0.1 * torch.randn(len(w), generator=draw)
        watch.update(w)
        parts = zip(shapes.items(), w.split(sizes), strict=True)
        tensors = {name: part.reshape(shape).clone() for (name, shape), part in parts}
        save_file(tensors, folder / f"step_{step}.safetensors")
        np.savez(folder / f"step_{step}.npz", **{n: t.numpy() for n, t in tensors.items()})
        torch.save(tensors, folder / f"step_{step}.pt")
    return {window: watch.vector(str(window)) for window in windows}


def _command(folder: Path, ending: str, window: int) -> list[str]:
    """`wima average`, with a word on its memory at the end."""
    out = folder / f"mean{window}.{ending}"
    words = ["average", f"{folder}/step_*.{ending}", "--window", str(window), "--out", str(out)]
    return [*TELLS, "from wima.cli.main import main; main()", *words, "--force"]


def _case(folder: Path, ending: str, cold: bool, turns: int) -> list[str]:
    files = sorted(folder.glob(f"step_*.{ending}"))
    before = _forget if cold else _read
    runs: list[tuple[float, int]] = []

    def average() -> None:
        runs.append(_run(_command(folder, ending, len(files))))

    reading = _seconds(lambda: _read(files), lambda: before(files), turns)
    averaging = _seconds(average, lambda: before(files), turns)
    times = [number(median(reading)), number(median(averaging))]
    return [f".{ending}", "empty" if cold else "warm", *times, *_shown(runs)]


def _seconds(run: Callable[[], None], before: Callable[[], None], turns: int) -> list[float]:
    seconds = []
    for _ in range(turns):
        before()
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _read(files: list[Path]) -> None:
    block = bytearray(BLOCK)
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass


def _forget(files: list[Path]) -> None:
    """Let the system drop the files from its cache."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(command: list[str]) -> tuple[float, int]:
    """Processor time of a command in seconds, and the most memory that it held in bytes."""
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    told = done.stdout[: done.stdout.rindex("Name:")].split()[-1]
    return float(told), 1024 * int(done.stdout.rpartition("VmHWM:")[2].split()[0])


def _shown(runs: list[tuple[float, int]]) -> list[str]:
    seconds, peaks = zip(*runs, strict=True)
    return [number(median(seconds)), f"{max(peaks) / 1e6:.0f}"]


def _equal(folder: Path, window: int, w: torch.Tensor, names: Iterable[str]) -> bool:
    """Whether the mean of the files is that of the loop, bit for bit."""
    _run(_command(folder, "safetensors", window))
    mean = load_file(folder / f"mean{window}.safetensors")
    vector = torch.cat([mean[name].flatten() for name in names])
    return torch.equal(vector.view(torch.int32), w.view(torch.int32))

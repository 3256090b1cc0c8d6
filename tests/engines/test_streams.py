"""Standard streams that are closed, as under cron: no file of ours may take their place."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

# It prints during the rounds, in workers too: into whatever stands at descriptors 1 and 2.
NET = """
import os
import sys

from torch import nn


class Loud(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        print("x" * 5000, flush=True)
        if "QUIET" not in os.environ or "wima.simulation.engines.processes" in sys.argv:
            os.write(2, b"y" * 5000)
        return super().forward(x)
"""
CLOSED = ["0<&-", "1>&-", "2>&-"]
COMBINATIONS = [
    " ".join(part for bit, part in enumerate(CLOSED) if n & 1 << bit) for n in range(1, 8)
]
WORDS = ["digits", "model=net.py:Loud", "rounds=2", "clients_per_round=4", "window=2", "workers=2"]


def wima(folder: Path, *words: str, streams: str = "") -> None:
    command = shlex.join([sys.executable, "-m", "wima", *words])
    subprocess.run(
        ["sh", "-c", f"exec {command} {streams}"], cwd=folder, check=True, capture_output=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    (folder / "net.py").write_text(NET)
    wima(folder, "run", *WORDS, "engine=serial", "--out", "open")
    return folder


def result(run: Path) -> list[bytes]:
    names = ("records.jsonl", "models/plain.safetensors", "models/wima2.safetensors")
    assert '"done"' in (run / "status.json").read_text()
    return [(run / name).read_bytes() for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "processes"])
@pytest.mark.parametrize("streams", COMBINATIONS)
def test_closed_streams_change_no_bytes(folder, streams, engine):
    out = f"{engine} {COMBINATIONS.index(streams)}"
    wima(folder, "run", *WORDS, f"engine={engine}", "--out", out, streams=streams)
    assert result(folder / out) == result(folder / "open")


def test_a_sweep_with_a_worker_needs_no_streams(folder):
    words = [*WORDS[:4], "averagers=wima:window=2", *WORDS[5:], "engine=processes", "--jobs", "2"]
    wima(folder, "sweep", *words, "--out", "sweep", streams=COMBINATIONS[-1])
    (run,) = (file.parent for file in (folder / "sweep").glob("*/records.jsonl"))
    assert result(run) == result(folder / "open")


def test_a_script_that_closed_its_streams_loses_nothing(folder):
    """Its own files may stand at the descriptors of streams that were closed when it started."""
    script = f"""
import os
os.environ["QUIET"] = "except in workers"
from pathlib import Path
from wima.runs.launch import launch
from wima.runs.settings import load_settings
mine = open("mine.txt", "w+")
assert mine.fileno() == 2
launch(load_settings("digits", {[*WORDS[1:], "engine=processes"]!r}), Path("script"))
assert mine.read() == ""
"""
    command = ["sh", "-c", f'exec {sys.executable} -c "$0" 2>&-', script]
    subprocess.run(command, cwd=folder, check=True)
    assert result(folder / "script") == result(folder / "open")

"""Commands in odd surroundings: full devices, few descriptors, odd paths, a wrong MPLBACKEND."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RUN = ["run", "digits", "rounds=2", "clients_per_round=4"]


def wima(folder: Path, *words: str, stdout: str = os.devnull, **options: Any) -> tuple[int, str]:
    """The exit code, and what went to standard error."""
    with open(stdout, "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "wima", *words],
            cwd=folder,
            check=False,
            stdout=output,
            stderr=subprocess.PIPE,
            **options,
        )
    return done.returncode, done.stderr.decode()


def state(path: Path) -> str:
    return json.loads((path / "status.json").read_text())["state"]


@pytest.mark.parametrize("words", [RUN, ["list"], ["--help"]], ids=lambda words: words[0])
def test_a_full_device_as_output_is_said_and_the_run_is_complete(words, tmp_path):
    code, errors = wima(tmp_path, *words, stdout="/dev/full")
    assert code == 1
    assert errors == "Error: No space left on device; what is printed may be incomplete.\n"
    assert [state(run) for run in tmp_path.glob("runs/*")] == ["done"] * (words == RUN)


def few_descriptors(number: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))


def test_too_few_descriptors_are_an_error_that_says_so(tmp_path, cold):
    words = [*RUN, "averagers=wima:window=2", "engine=processes", "workers=2"]
    code, errors = wima(tmp_path, *words, preexec_fn=few_descriptors(24))
    assert code == 1 and "Traceback" not in errors
    assert "cannot be started: Too many open files" in errors and "'serial'" in errors
    assert not list(tmp_path.iterdir())
    assert wima(tmp_path, *RUN, "engine=serial", preexec_fn=few_descriptors(24))[0] == 0


NET = """
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        if self.training:
            raise ValueError(__file__)
        return super().forward(x.flatten(1))
"""


def test_a_path_need_not_be_utf8(tmp_path, cold):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    (folder / "net.py").write_text(NET)
    assert wima(folder, *RUN, "--out", folder.name) == (0, "")
    assert state(folder / folder.name) == "done"
    code, errors = wima(folder, *RUN, "model=net.py:Net", "--out", "failed")
    assert code == 1 and errors.startswith("Error: The run failed after 0 of 2 rounds: round 0, ")
    assert "Traceback" not in errors and state(folder / "failed") == "failed"
    assert "Traceback" in (folder / "failed/error.txt").read_text()


def test_a_wrong_backend_of_matplotlib_does_not_matter(tmp_path, cold):
    code, errors = wima(tmp_path, *RUN, env={**os.environ, "MPLBACKEND": "nonsense"})
    assert (code, errors) == (0, "")
    assert list(tmp_path.glob("runs/*/curves.png"))

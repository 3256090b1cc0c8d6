"""How long one waits: for the import, for the help, and for the first finished round."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.drive import ROOT
from benchmarks.micro import micro_result
from benchmarks.report import number

WIMA = [sys.executable, "-m", "wima"]
DIGITS = [*WIMA, "run", "digits", "clients_per_round=10", "rounds=1000000"]
LIMIT = 120  # seconds for a first round


def measure(turns: int) -> dict[str, Any]:
    cases = {
        "`python -c pass`": lambda: _whole([sys.executable, "-c", "pass"]),
        "`import wima`": lambda: _whole([sys.executable, "-c", "import wima"]),
        "`wima --help`": lambda: _whole([*WIMA, "--help"]),
        "`wima run digits` to the first round, one process": lambda: _first_round("engine=serial"),
        "`wima run digits` to the first round, two workers": lambda: _first_round(
            "engine=processes", "workers=2"
        ),
    }
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for case, run in cases.items():
        run()  # files come into memory
        seconds[case] += [run() for _ in range(turns)]
    rows = [[case, number(min(s)), number(median(s))] for case, s in seconds.items()]
    table = {"columns": ["what", "best, s", "median, s"], "rows": rows}
    text = f"From the command to its end, or to the first line in records.jsonl; {turns} times."
    return micro_result("startup", "Start-up", text, [table])


def _whole(command: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return time.perf_counter() - begin


def _first_round(*settings: str) -> float:
    """Start a long run, wait for its first record, and end it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        records = out / "records.jsonl"
        begin = time.perf_counter()
        command = [*DIGITS, *settings, "--out", str(out)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=ROOT, **quiet) as process:
            try:
                while not (records.exists() and records.stat().st_size):
                    if process.poll() is not None or time.perf_counter() - begin > LIMIT:
                        raise RuntimeError(f"No first round: {' '.join(command)}")
                    time.sleep(0.002)
                return time.perf_counter() - begin
            finally:
                process.terminate()
                process.wait()

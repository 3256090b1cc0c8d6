"""Runs contestants turn by turn, round-robin: all are started once, one works while others sleep.

What a machine does to one it does to all: slow minutes hit every contestant alike.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.memory import Peak, tree

ROOT = Path(__file__).parents[1]
DAEMONS = (
    "flower",
    "flower-tensors",
)  # Ray's daemons watch each other: they cannot be stopped for a minute
PATIENCE = 1800  # seconds until a turn counts as hung


class Failed(Exception):  # noqa: N818  (the rest goes on)
    """A contestant that could not start or go on; the message is the reason."""


class Contestant:
    """A process that speaks the protocol of `benchmarks.turns`."""

    def __init__(self, command: Sequence[str], stop_all: bool = True) -> None:
        self._stop_all = stop_all
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the process)
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=_end_with_parent,
        )
        self.loss = self._answer()["loss"]
        self.startup = time.perf_counter() - begin
        self.peak = self.anonymous = 0
        self._sleep()

    def turn(self, rounds: int, evaluate: bool = False) -> float:
        """Play so many rounds: seconds per round."""
        self._signal(signal.SIGCONT)
        with Peak(self._process.pid) as peak:
            asked = {"rounds": rounds, "evaluate": evaluate}
            with suppress(BrokenPipeError):  # then there is no answer either
                self._process.stdin.write(json.dumps(asked).encode() + b"\n")
                self._process.stdin.flush()
            answer = self._answer()
        self._sleep()
        self.loss, self.anonymous = answer["loss"], peak.anonymous
        self.peak = max(self.peak, peak.bytes)
        return answer["seconds"] / rounds

    def _sleep(self) -> None:
        # What waits may still poll, or run ahead: the second process of pfl2 went on with the next
        # round, which made whoever came after it in the rotation 25 % slower.
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        """To the process; with `stop_all` to its children too."""
        for pid in tree(self._process.pid) if self._stop_all else [self._process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _answer(self) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            ready = selector.select(PATIENCE)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            reason = self._last_words() if ready else f"no answer in {PATIENCE} s"
            self.close()
            raise Failed(reason)
        return json.loads(line)

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["it ended without a word"])[-1].strip()

    def close(self) -> None:
        """Let it end by itself; end what is left of it after a while."""
        family = tree(self._process.pid)
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
        _end(family[1:])


def _end_with_parent() -> None:
    """Ask the kernel to end this process with the driver: stopped, it would not see its end."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1: PR_SET_PDEATHSIG


def _end(pids: Sequence[int]) -> None:
    """End children that outlived their parent."""
    until = time.monotonic() + 5
    left = [pid for pid in pids if _alive(pid)]
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left = [pid for pid in left if _alive(pid)]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def interleave(
    commands: Mapping[str, Sequence[str]],
    turns: int,
    rounds: int,
    warm_up: bool = True,
) -> dict[str, dict[str, Any]]:
    """Start all contestants one by one, then play turns in rotation: name -> measurements.

    warm_up: start each once before, so that start-up is not that of a cold disk.
    """
    results: dict[str, dict[str, Any]] = {}
    contestants: dict[str, Contestant] = {}
    try:
        for name, command in commands.items():
            _say(f"{name}: starting")
            try:
                if warm_up:
                    Contestant(command).close()
                contestants[name] = Contestant(command, stop_all=name not in DAEMONS)
                results[name] = {"startup": contestants[name].startup, "seconds": []}
                results[name]["seconds_evaluating"] = []
            except Failed as failure:
                _say(f"{name}: {failure}")
                results[name] = {"failed": str(failure)}
        for turn in range(turns):
            _one_turn_each(contestants, results, rounds, turn)
    finally:
        for contestant in contestants.values():
            contestant.close()
    return results


def _one_turn_each(
    contestants: dict[str, Contestant], results: dict[str, dict[str, Any]], rounds: int, turn: int
) -> None:
    for name, contestant in list(contestants.items()):
        try:
            seconds, evaluating = (contestant.turn(rounds, evaluate) for evaluate in (False, True))
        except Failed as failure:
            _say(f"turn {turn + 1}, {name}: {failure}")
            results[name] = {"failed": str(failure)}
            del contestants[name]
            continue
        _say(f"turn {turn + 1}, {name}: {seconds:.4g} s per round, {evaluating:.4g} s evaluating")
        result = results[name]
        result["seconds"].append(seconds)
        result["seconds_evaluating"].append(evaluating)
        memory = {"peak_bytes": contestant.peak, "anonymous_bytes": contestant.anonymous}
        result.update(memory, loss=contestant.loss)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

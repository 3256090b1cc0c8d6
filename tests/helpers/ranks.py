"""Ranks of a distributed run, as forks of this process: they start faster than interpreters."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.helpers.interrupted import in_a_fork
from wima.cli.main import main
from wima.simulation.engines.ranks import join
from wima.simulation.local import Solver

LIMIT = 120  # seconds for all ranks to end


class Ended(NamedTuple):
    """How a rank ended."""

    code: int
    output: str


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ranks(count: int, work: Callable[[int], object], folder: Path) -> list[Ended]:
    """Let so many ranks do this work, each with its number, and wait for them."""
    common = {"WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    files = [folder / f"rank-{rank}.txt" for rank in range(count)]

    def start(rank: int) -> int:
        def rank_alone() -> None:
            os.environ.update({name: str(value) for name, value in common.items()}, RANK=str(rank))
            work(rank)

        return in_a_fork(rank_alone, files[rank], _leave)

    pids = [start(rank) for rank in range(count)]
    codes = dict.fromkeys(pids)
    limit = time.monotonic() + LIMIT
    while None in codes.values():
        for pid in [pid for pid, code in codes.items() if code is None]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > limit:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [Ended(codes[pid], file.read_text()) for pid, file in zip(pids, files, strict=True)]


def _leave() -> None:
    """As the interpreter does at its end."""
    if join.cache_info().currsize:
        join().leave()


def wima(*arguments: str) -> None:
    """The command line, in this process."""
    sys.argv = ["wima", *arguments]
    main()


def die_in_round(t: int) -> None:
    """This process is killed when it trains its first client of a round."""
    solve = Solver.solve

    def die_or_solve(self, problem):
        if problem.t == t:
            os.kill(os.getpid(), signal.SIGKILL)
        return solve(self, problem)

    Solver.solve = die_or_solve

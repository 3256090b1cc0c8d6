"""Ranks of a distributed run, as forks of this process: they start faster than interpreters."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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
    pids = [_start({**common, "RANK": r}, lambda r=r: work(r), files[r]) for r in range(count)]
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


def _start(environment: dict[str, object], work: Callable[[], object], output: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(output, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.update({name: str(value) for name, value in environment.items()})
        work()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        if join.cache_info().currsize:
            join().leave()  # as the interpreter does at its end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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

"""Random configurations, each run twice: at once, and stopped and resumed several times.

Where a run stops, whether by Ctrl-C, a signal or a kill, and with which engine and stores it is
resumed, is random too.  Both must end alike: with the same bytes, or the same error after the same
round.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers.interrupted import after_round, ends, in_a_fork, outcome
from wima.core.errors import RunError, UsageError
from wima.core.signals import Interrupted
from wima.runs.launch import Runner, launch, resume
from wima.runs.run import read_run
from wima.runs.settings import Settings, make_settings

OWN_NET = f"{Path(__file__).parents[1] / 'golden' / 'own_net.py'}:Net"
EXACT = ("serial", "reference", "processes")
ALGORITHMS = (
    *("fedavg", "fedprox:mu=0.1", "scaffold", "scaffold:option=I", "feddyn:alpha=0.1"),
    *("feddyn:alpha=0.1:serve_mean=true", "adabest", "adabest:serve_mean=true", "fedcm"),
    *("fedacg", "mime", "mimelite"),
)
SERVERS = ("sgd", "momentum", "sgd:lr=0.7", "adam:lr=0.01", "yogi:lr=0.01", "adagrad:lr=0.01")
AVERAGERS = (
    *("wima:window=1", "wima:window=2", "wima:window=4:part=classifier", "wima:window=3:buckets=2"),
    *("wima:window=auto", "ema", "ema:decay=0.5:begin=initial", "power-ema", "lawa:k=2:every=2"),
    *("swa:start=0.5:cycle=2", "swa:start=1:cycle=1:phase=izmailov", "ema:part=features"),
)
SCHEDULES = ("constant", "exponential:decay=0.8", "cosine", "cyclic:start=0.3:cycle=2:low=0.5")
SEEN = ("same bytes", "same error", "refused", "mismatches")


class Trial(NamedTuple):
    """A random configuration, and how its second run is interrupted."""

    table: dict[str, Any]
    stops: list[Stop]


class Stop(NamedTuple):
    """After which round the run stops, how, and what changes before it is resumed."""

    t: int
    how: str  # ctrl-c, signal, kill
    changes: list[str]


def trial(draw: random.Random) -> Trial:
    """A random configuration of 3 to 6 rounds."""

    def maybe(chance: float, name: str, *values: Any) -> dict[str, Any]:
        return {name: draw.choice(values)} if draw.random() < chance else {}

    private = draw.random() < 0.15
    rounds, clients = draw.randint(3, 6), draw.randint(3, 12)
    table: dict[str, Any] = {
        "data": "digits",
        "clients": clients,
        "rounds": rounds,
        "clients_per_round": draw.randint(1, clients),
        "lr": draw.choice([0.01, 0.05, 0.1, 0.3, 30.0]),
        "seed": draw.randint(0, 2**32 - 1),
        "algorithm": draw.choice(ALGORITHMS[:2] if private else ALGORITHMS),
        "server": draw.choice(SERVERS),
        "stack_server": True,
        "averagers": draw.sample(AVERAGERS, draw.randint(0, 4)),
        "checkpoint_every": draw.choice([1, 1, 2, 3, 0]),
        "checkpoint_minutes": 0.0,
        "engine": _engine(draw, draw.random() < 0.15),
        "alpha": draw.choice([0.0, 0.5, "iid"] if clients >= 10 else [0.5, "iid"]),
        **maybe(0.6, "batch_size", 1, 7, 20, 500, "full"),
        **maybe(0.2, "epochs", 2),
        **maybe(0.2, "steps", 1, 3),
        **maybe(0.3, "last_batch", "short"),
        **maybe(0.3, "weight_decay", 1e-3),
        **maybe(0.2, "momentum", 0.5),
        **maybe(0.2, "clip", 0.5),
        **maybe(0.4, "schedule", *SCHEDULES),
        **maybe(0.3, "weighting", "uniform"),
        **maybe(0.3, "model", OWN_NET, "cnn"),
        **maybe(0.3, "eval_every", 0, 2),
        **maybe(0.3, "eval_last", 0, 2),
        **maybe(0.2, "client_test", 0.2),
        **maybe(0.2, "calibration", True),
        **maybe(0.1, "finetune", "sgd:steps=2"),
        **maybe(0.3, "dropout", 0.3, 0.9),
        **maybe(0.3, "stragglers", 0.5),
        **maybe(0.3, "exclude", True),
        **maybe(0.2, "diverged", 1.05, 2.0),
        **maybe(0.3, "store_dtype", "bfloat16"),
        **maybe(0.3, "window_store", "files"),
        **maybe(0.3, "client_memory_gb", 0.0, 1e-5),
        **maybe(0.2, "snapshots", 1, 2),
        **maybe(0.2, "cohorts", "poisson"),
    }
    if "client_test" in table:
        table |= maybe(0.7, "client_eval_every", 1, 2)
    if private:
        noise = draw.choices(["noise=1.0", "epsilon=50.0"], [9, 1])[0]
        adaptive = draw.choice(["", ":quantile=0.5"])
        table |= {"privacy": f"gaussian:clip=0.5:{noise}{adaptive}", "weighting": "uniform"}
    exact = table["engine"] != "batched"
    return Trial(table, [_stop(draw, rounds, exact) for _ in range(draw.randint(1, 3))])


def _engine(draw: random.Random, batched: bool) -> str:
    return "batched" if batched else draw.choices(EXACT, [12, 6, 1])[0]


def _stop(draw: random.Random, rounds: int, exact: bool) -> Stop:
    changes = {
        "engine": _engine(draw, not exact),
        "window_store": draw.choice(["memory", "files"]),
        "client_memory_gb": draw.choice(["none", "0.0", "1e-5"]),
        "checkpoint_every": draw.choice(["0", "1", "2"]),
    }
    changed = draw.sample(sorted(changes), draw.randint(0, len(changes)))
    how = draw.choices(["ctrl-c", "signal", "kill"], [6, 6, 1])[0]
    return Stop(draw.randint(1, rounds), how, [f"{name}={changes[name]}" for name in changed])


def ending(path: Path) -> tuple[str, str, dict[str, bytes]]:
    """How a run ended: its state, the reason, and its bytes."""
    status = read_run(path).status
    return status["state"], status.get("reason", ""), outcome(path)


def _quietly(work: Callable[[], object]) -> None:
    """Do the work without its output; how a run ends is in its folder."""
    silent = io.StringIO()
    with (
        contextlib.redirect_stdout(silent),
        contextlib.redirect_stderr(silent),
        contextlib.suppress(RunError, Interrupted),  # `Diverged` is a `RunError`
    ):
        work()


def _until(stop: Stop, work: Callable[[], object]) -> None:
    """Do the work until the round of the stop."""

    def interrupt() -> None:
        if stop.how == "ctrl-c":
            raise KeyboardInterrupt
        os.kill(os.getpid(), signal.SIGKILL if stop.how == "kill" else signal.SIGTERM)

    append = Runner.append
    try:
        after_round(stop.t, interrupt)
        if stop.how == "kill":
            ends(in_a_fork(work))
        else:
            _quietly(work)
    finally:
        Runner.append = append  # type: ignore[method-assign]  # the round may not have come


def stopped_and_resumed(settings: Settings, stops: list[Stop], path: Path) -> None:
    """Run the settings at `path`, stopping and resuming the run."""
    _until(stops[0], lambda: launch(settings, path))
    for number, stop in enumerate(stops, 1):
        if read_run(path).status["state"] in ("done", "failed", "diverged"):
            return
        following = stops[number] if number < len(stops) else None
        again = lambda changes=stop.changes: resume(path, changes=changes)  # noqa: E731
        _until(following, again) if following else _quietly(again)


def attempt(one: Trial, place: Path) -> str:
    """Play a trial; one of `SEEN`, or for a mismatch what differed."""
    settings = make_settings(one.table)
    whole, parts = place / "whole", place / "parts"
    try:
        _quietly(lambda: launch(settings, whole))
    except UsageError:
        return "mismatches: refused, but a folder was left" if whole.exists() else "refused"
    expected = ending(whole)
    stopped_and_resumed(settings, one.stops, parts)
    found = ending(parts)
    if found != expected:
        return f"mismatches: {_difference(expected, found)}"
    return "same bytes" if found[0] == "done" else "same error"


def _difference(expected: tuple[Any, ...], found: tuple[Any, ...]) -> str:
    if expected[:2] != found[:2]:
        return f"expected {expected[:2]}, got {found[:2]}"
    names = {*expected[2], *found[2]}
    return ", ".join(sorted(n for n in names if expected[2].get(n) != found[2].get(n)))


def explore(count: int, seed: int, tell: Callable[[str], object]) -> Counter[str]:
    """Play trials until `count` of them ran; how they ended."""
    seen = Counter(dict.fromkeys(SEEN, 0))
    number = 0
    while seen.total() - seen["refused"] < count:
        one = trial(random.Random(f"{seed} {number}"))
        with tempfile.TemporaryDirectory() as place:
            try:
                end = attempt(one, Path(place))
            except Exception as error:
                end = f"mismatches: {type(error).__name__}: {error}"
            shutil.rmtree(place, ignore_errors=True)
            Path(place).mkdir()
        if end.startswith("mismatches"):
            tell(f"{seed} {number}: {end}\n  {one}")
        seen[end.partition(":")[0]] += 1
        number += 1
        if number % 100 == 0:
            tell(", ".join(f"{n} {what}" for what, n in seen.items()))
    return seen


def main(count: int, seed: int) -> int:
    """Print what was seen; the exit code."""
    seen = explore(count, seed, lambda line: print(line, flush=True))
    print(", ".join(f"{n} {what}" for what, n in seen.items()))
    return int(seen["mismatches"] > 0)

"""Commands that start for real, and forks that cannot be told from them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import zygote
from tests.helpers.commands import environment, shell, start
from tests.helpers.waiting import rounds_recorded, wait_for

SHORT = ("digits", "rounds=3", "clients=10", "clients_per_round=2")
COMMANDS = [
    ("--version",),
    ("run", *SHORT, "engine=serial", "--out", "run"),
    ("run", *SHORT, "engine=processes", "workers=2", "--out", "run"),
    ("sweep", *SHORT, "--seeds", "0,1", "--jobs", "1", "--out", "runs"),
    ("run", "digits", "rounds=0"),
]


def records(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.rglob("records.jsonl"))]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_fork_does_what_a_true_start_does(command, tmp_path):
    ends = {}
    for way in ("cold", "fork"):
        (tmp_path / way).mkdir()
        if way == "cold":
            with zygote.cold():
                ends[way] = shell(*command, cwd=tmp_path / way)
        else:
            ends[way] = shell(*command, cwd=tmp_path / way)
    cold, fork = ends["cold"], ends["fork"]
    assert (fork.returncode, fork.stderr) == (cold.returncode, cold.stderr)
    assert [line.split()[:2] for line in fork.stdout.splitlines()] == [
        line.split()[:2] for line in cold.stdout.splitlines()
    ]
    assert records(tmp_path / "fork") == records(tmp_path / "cold")
    assert bool(records(tmp_path / "cold")) == (command != ("--version",) and cold.returncode == 0)


forks = pytest.mark.skipif(subprocess.Popen is not zygote.Popen, reason="there are no forks here")
PROBE = """
import json, os, signal, sys
def main():
    print(json.dumps({"cwd": os.getcwd(), "argv": sys.argv, "x": os.environ.get("WIMA_X"),
        "home": os.environ.get("HOME"), "leader": os.getsid(0) == os.getpid(),
        "ignored": signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
        "int": signal.getsignal(signal.SIGINT) == signal.default_int_handler,
        "blocked": signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "passed": os.read(int(sys.argv[3]), 9).decode(), "main": __name__ == "probe"}))
    sys.exit(7)
"""
# Started as workers are: code, the path to import from, and a module with `main`.
START = "import importlib, json, sys; sys.path = json.loads(sys.argv[1]); "
START += "importlib.import_module(sys.argv[2]).main()"


def probe(folder: Path) -> tuple[int, str]:
    (folder / "probe.py").write_text(PROBE)
    reading, writing = os.pipe()
    os.write(writing, b"passed")
    path = json.dumps([str(folder), *sys.path])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    heard = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = subprocess.run(
            [sys.executable, "-c", START, path, "probe", str(reading)],
            cwd=folder,
            env={**environment(), "WIMA_X": "1"},
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[reading],
            start_new_session=True,
            check=False,
        )
    finally:
        signal.signal(signal.SIGHUP, heard)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reading)
        os.close(writing)
    return done.returncode, done.stdout.replace(str(reading), "N")


@forks
def test_a_fork_has_the_surroundings_of_a_true_start(tmp_path):
    with zygote.cold():
        cold = probe(tmp_path)
    assert probe(tmp_path) == cold and cold[0] == 7
    assert '"passed": "passed"' in cold[1] and '"leader": true' in cold[1]


@forks
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_fork_is_signalled_and_waited_for(number, tmp_path):
    path = tmp_path / "run"
    arguments = ("run", "digits", "rounds=1000000", "eval_every=0", "engine=serial")
    with start(*arguments, "--out", str(path), cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        wait_for(lambda: rounds_recorded(path) > 2 or process.poll() is not None, "rounds")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(number)
        code = process.wait(60)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL) == process.returncode

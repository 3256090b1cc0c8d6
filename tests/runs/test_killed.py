"""A run that is killed at any moment resumes to the same bytes."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.interrupted import FILES, ends, in_a_fork, kill, outcome, settings_of
from tests.helpers.states import same
from wima.runs import checkpoint
from wima.runs.build import build
from wima.runs.folder import read_run
from wima.runs.launch import FOLDER, launch, resume
from wima.storage import manifests
from wima.storage.segments import Segments

CASES = {
    "fedavg": {},
    "fedavg-files": FILES,
    "scaffold": {"algorithm": "scaffold"},
    "scaffold-files": {"algorithm": "scaffold", **FILES},
    "adabest": {"algorithm": "adabest"},
    "adabest-files": {"algorithm": "adabest", "store_dtype": "bfloat16", **FILES},
    "mime": {"algorithm": "mime", "server": "sgd:lr=0.1"},
    "mime-files": {"algorithm": "mime", "server": "sgd:lr=0.1", **FILES},
    "fedadam": {"server": "adam:lr=0.01", "dropout": 0.3, "stragglers": 0.3},
}


def memories(path: Path) -> dict[int, tuple]:
    """What clients remember at the end of a run."""
    run = read_run(path)
    with build(run.settings, path / FOLDER) as simulation:
        store = Segments(path / FOLDER)
        checkpoint.load(simulation, store, manifests.find(store)[0][0])
        simulation.state.memory.read(0, simulation.w)
        return simulation.state.memory.visited()


@pytest.fixture(scope="module", params=CASES)
def undisturbed(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / request.param
    settings = settings_of(**CASES[request.param])
    begin = time.perf_counter()
    launch(settings, path)
    return settings, path, time.perf_counter() - begin


def test_a_run_killed_again_and_again_comes_to_the_same_bytes(undisturbed, tmp_path):
    settings, whole, seconds = undisturbed
    draw, path = random.Random(whole.name), tmp_path / "run"
    pid = in_a_fork(lambda: launch(settings, path))
    kill(pid, draw.uniform(0.2, 1.0) * seconds)
    kills = 1
    while kills < 5:
        if not path.exists():
            pid = in_a_fork(lambda: launch(settings, path))
        elif read_run(path).status["state"] == "done":
            break
        else:
            pid = in_a_fork(lambda: resume(path))
        kill(pid, draw.uniform(0.0, 0.7) * seconds)
        kills += 1
    if not path.exists():
        launch(settings, path)
    elif read_run(path).status["state"] != "done":
        resume(path)
    assert outcome(path) == outcome(whole)
    assert same(tuple(memories(path).items()), tuple(memories(whole).items()))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    launch(settings_of(algorithm="scaffold", **FILES), path)
    return path


@pytest.mark.parametrize("moment", ["segment", "manifest", "renamed", "cleaning"])
def test_killed_amid_a_checkpoint(moment, whole, tmp_path):
    settings, path = settings_of(algorithm="scaffold", **FILES), tmp_path / "run"

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def broken():
        places = {
            "segment": (Segments, "verify"),
            "manifest": (manifests, "write_manifest"),
            "renamed": (manifests, "prune"),
            "cleaning": (Segments, "keep"),
        }
        owner, name = places[moment]
        if moment == "segment":
            from wima.storage import segments as store

            original, owner, name = store.digest, store, "digest"
            calls = iter(range(10**6))
            store.digest = lambda p: die() if next(calls) == 9 else original(p)
        else:
            original, calls = getattr(owner, name), iter(range(10**6))
            setattr(owner, name, lambda *a: die() if next(calls) == 2 else original(*a))
        launch(settings, path)

    assert ends(in_a_fork(broken)) == -signal.SIGKILL
    assert 0 < len(read_run(path).records) < settings.rounds
    resume(path)
    assert outcome(path) == outcome(whole)

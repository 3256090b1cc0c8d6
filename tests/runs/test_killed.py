"""A run that is killed at any moment resumes to the same bytes."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.helpers.interrupted import FILES, ends, in_a_fork, outcome, settings_of
from tests.helpers.states import same
from tests.lab.kills import CASES, killed_until_done
from wima.runs import checkpoint, folder
from wima.runs.build import build
from wima.runs.folder import FOLDER
from wima.runs.launch import launch, resume
from wima.runs.run import read_run
from wima.storage import manifests
from wima.storage.segments import Segments


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


@pytest.mark.lab
def test_a_run_killed_again_and_again_comes_to_the_same_bytes(undisturbed, tmp_path):
    settings, whole, seconds = undisturbed
    path = tmp_path / "run"
    killed_until_done(path, settings, random.Random(whole.name), seconds, 5)
    assert outcome(path) == outcome(whole)
    assert same(tuple(memories(path).items()), tuple(memories(whole).items()))


def test_a_run_killed_while_its_folder_is_made_leaves_nothing_behind(tmp_path):
    def broken():
        folder.environment = lambda: os.kill(os.getpid(), signal.SIGKILL)
        launch(settings_of(), tmp_path / "run")

    assert ends(in_a_fork(broken)) == -signal.SIGKILL
    assert [file.name[:5] for file in tmp_path.iterdir()] == [".run."]
    launch(settings_of(), tmp_path / "run")
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


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
            "renamed": (manifests, "manifests"),  # which is listed right after
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

"""Workers that die and models that diverge."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.helpers.interrupted import ends, in_a_fork, outcome, settings_of
from wima.core.errors import Diverged, RunError
from wima.runs.folder import FOLDER
from wima.runs.launch import launch
from wima.runs.run import read_run
from wima.storage import manifests
from wima.storage.segments import Segments


def test_divergence_ends_the_run_with_round_and_quantity(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(Diverged, match=r"diverged after \d+ of 24 rounds: round \d+: the norm"):
        launch(settings_of(lr=1e6, diverged=10.0), path)
    assert read_run(path).status["state"] == "diverged"


@pytest.mark.usefixtures("cold")
def test_a_failing_worker_is_replaced_and_nothing_changes(tmp_path):
    settings = settings_of(engine="processes", workers=2, rounds=12)
    launch(settings_of(engine="serial", rounds=12), tmp_path / "whole")  # to the bit the same
    path, log = tmp_path / "run", tmp_path / "killed"

    def with_a_murderer():
        def murder():
            me, left = os.getpid(), [2, 5]
            while left:
                time.sleep(0.01)
                with suppress(OSError, IndexError):
                    if (path / "records.jsonl").read_text().count("\n") >= left[0]:
                        victim = Path(f"/proc/{me}/task/{me}/children").read_text().split()[0]
                        os.kill(int(victim), signal.SIGKILL)
                        log.open("a").write(f"{victim}\n")
                        left.pop(0)

        threading.Thread(target=murder, daemon=True).start()
        launch(settings, path)

    assert ends(in_a_fork(with_a_murderer)) == 0
    assert len(set(log.read_text().split())) == 2
    assert outcome(path) == outcome(tmp_path / "whole")


def test_a_client_that_kills_its_workers_ends_the_run_with_a_checkpoint(tmp_path):
    options = {"engine": "processes", "workers": 2, "rounds": 12}
    # No evaluation before: a worker that still has its batch to do would die of that one.
    settings = settings_of(**options, eval_every=12, eval_last=1)
    path, told = tmp_path / "run", tmp_path / "error"

    def deadly():
        from wima.simulation.engines.processes import Processes
        from wima.simulation.local import Problem

        original, own, parent = Processes._send, Processes._do, os.getpid()

        def send(self, child, job):
            original(self, child, job)
            if isinstance(job.work, Problem) and job.work.t == 6:
                os.kill(child.process.pid, signal.SIGKILL)

        def do(self, job):
            """Leave the deadly client to the workers, however long they take to start."""
            if isinstance(job.work, Problem) and job.work.t == 6:
                self._training.append(job)
            else:
                own(self, job)

        Processes._send, Processes._do = send, do
        try:
            launch(settings, path)
        except RunError as error:
            told.write_text(str(error))
            raise
        finally:
            assert parent == os.getpid()

    assert ends(in_a_fork(deadly)) == 1
    assert "killed by signal 9. 3 workers have exited here" in told.read_text()
    assert "round 6, client" in told.read_text()
    (found, *_), wrong = manifests.find(Segments(path / FOLDER))
    assert found.t == 6 and not wrong and read_run(path).status["state"] == "failed"

"""Random configurations that are stopped and resumed end as if nothing had happened.

`python -m tests.lab --configs 2000` tries more of them.
"""

from __future__ import annotations

import random

import pytest

from tests.lab.configs import Stop, Trial, attempt, trial
from wima.simulation.simulate import Simulation


@pytest.mark.lab
def test_random_configurations_resume_to_the_same_bytes(last_line):
    assert last_line("--configs", "40").endswith(" 0 mismatches")


def test_a_configuration_is_a_function_of_its_seed():
    assert trial(random.Random("3 4")) == trial(random.Random("3 4")) != trial(random.Random("4"))


def test_a_run_that_forgets_something_on_resuming_is_noticed(tmp_path, monkeypatch):
    """As if cohorts depended on how many rounds this process has run."""
    draw = Simulation._cohort
    monkeypatch.setattr(Simulation, "_cohort", lambda self, t: draw(self, t - self.done_before))
    run = Simulation.__next__

    def forgetful(self):
        if not hasattr(self, "done_before"):
            self.done_before = self.t
        return run(self)

    monkeypatch.setattr(Simulation, "__next__", forgetful)
    table = {
        "data": "digits",
        "clients": 10,
        "rounds": 4,
        "clients_per_round": 2,
        "engine": "serial",
        "checkpoint_every": 1,
    }
    stop = Stop(2, "signal", ["engine=reference"])
    assert attempt(Trial(table, [stop]), tmp_path).startswith("mismatches")

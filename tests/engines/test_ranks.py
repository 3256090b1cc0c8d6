"""Which rank a process is, and which clients it gets."""

from __future__ import annotations

import numpy as np
import pytest

from wima.core.errors import UsageError
from wima.data.batches import LocalSGD
from wima.simulation.engines.group import Place, first_host, place
from wima.simulation.engines.ranks import shared_out


def test_torchrun_and_srun_say_where_a_process_is():
    torchrun = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    srun = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "77", "SLURM_LOCALID": "1"}
    srun["SLURM_JOB_NODELIST"] = "n[03-04]"
    assert place({**torchrun, **srun}) == Place(3, 8, "a", 29500)
    found = place(srun)
    assert found[:3] == (5, 8, "n03") and found.local == 1
    assert place({**srun, "SLURM_PROCID": "0"}).port == found.port
    assert place({**srun, "MASTER_ADDR": "b", "MASTER_PORT": "1234"})[2:4] == ("b", 1234)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"RANK": "two"}, "RANK must be a whole number, got 'two'"),
        ({"RANK": "2"}, "RANK must be less than WORLD_SIZE 2, got 2"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR"),
        ({"MASTER_PORT": ""}, "MASTER_PORT"),
    ],
)
def test_places_that_cannot_be_are_refused(wrong, said):
    right = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500"}
    with pytest.raises(UsageError, match=said):
        place({**right, **wrong})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n[03-10,12],m1", "n03"), ("a-b[7,9]", "a-b7"), ("x,y[1-2]", "x")],
)
def test_the_first_of_slurms_nodes_is_where_ranks_meet(nodes, first):
    assert first_host(nodes) == first


def test_long_visits_are_shared_out_first():
    costs = [3, 9, 4, 4, 3, 1]
    owners = shared_out(costs, 2)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == rank) for rank in (0, 1)]
    assert loads == [sum(costs) / 2] * 2
    assert shared_out(costs, 1) == [0] * len(costs)
    assert shared_out([5], 3) == [0]


@pytest.mark.parametrize("given", [{}, {"steps": 4}, {"batch_size": "full", "epochs": 3}])
@pytest.mark.parametrize("last", ["fill", "short"])
def test_steps_are_counted_as_they_are_planned(given, last):
    sgd = LocalSGD(**given, last_batch=last)
    for n in (1, 9, 10, 25):
        plan = sgd.plan(n, np.random.default_rng(0))
        assert len(plan) == sgd.count(n)
        assert max(map(len, plan)) <= sgd.size(n)

"""Shared memory that is not there: another place, or an error, and never a signal."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn

import wima
from wima.core.errors import RunError
from wima.simulation.engines import processes

LARGE = 3_000_000  # bytes; more than `small_disk` holds


@pytest.fixture
def little_memory(small_disk, tmp_path, monkeypatch):
    """As in a container: little memory to share, and a temporary folder of its own."""
    monkeypatch.setattr(processes, "MEMORY", str(small_disk))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return small_disk


def used(folder) -> int:
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def test_what_does_not_fit_into_memory_is_shared_through_a_file(little_memory):
    arrays = processes.Shared()
    small, large = (np.full(n, 7, np.uint8) for n in (10_000, LARGE))
    handles = [arrays.share(array) for array in (small, large)]
    assert 10_000 <= used(little_memory) < LARGE
    assert np.array_equal(handles[0].open(), small) and np.array_equal(handles[1].open(), large)
    arrays.close()


def test_space_is_taken_when_it_is_asked_for(little_memory):
    arrays = processes.Shared()
    for _ in range(4):  # three would fill more than there is; none of it is written
        arrays.allocate((500_000,), np.uint8)
    assert used(little_memory) >= 1_000_000
    arrays.close()
    assert used(little_memory) < 100_000


def test_no_room_anywhere_is_an_error_that_says_so(little_memory, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(little_memory))
    arrays = processes.Shared()
    with pytest.raises(RunError, match=r"file of 3 MB.*No space left.*TMPDIR.*'serial'"):
        arrays.allocate((LARGE,), np.uint8)


def test_a_run_with_more_data_than_shared_memory_is_the_same_run(little_memory):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, LARGE // 4 // 60)).astype(np.float32)
    data = wima.FederatedData(x, draw.integers(0, 2, 60), np.arange(0, 61, 20))
    task = wima.make_task(lambda: nn.Linear(x.shape[1], 2), data, (x[:10], data.y[:10]))
    options = {"rounds": 2, "clients_per_round": 3, "batch_size": 20, "lr": 0.01, "workers": 2}
    one, two = (
        wima.run(task, engine=engine, **options).vectors["plain"]
        for engine in ("serial", "processes")
    )
    assert torch.equal(one, two)

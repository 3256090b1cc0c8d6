"""What clients remember between visits."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

import wima
from tests.helpers.toys import quadratics
from wima.simulation import clients as memory
from wima.simulation.clients import ClientMemory
from wima.storage.segments import Segments, Storage

CLIENTS = 6
REMEMBERING = [wima.Scaffold(), wima.FedDyn(alpha=0.1), wima.AdaBest(mu=0.2)]


def heterogeneous() -> wima.Task:
    """Quadratics in float32, each with an optimum and a curvature of its own."""
    draw = np.random.default_rng(3)
    a, b = draw.uniform(0.3, 1.0, (CLIENTS, 4)), draw.normal(size=(CLIENTS, 4))
    task = quadratics(a, b, [1] * CLIENTS)
    return task._replace(
        init=lambda seed: task.init(seed).float(),
        gradient=lambda w, batch: task.gradient(w.double(), batch).float(),
    )


def played(algorithm: wima.Algorithm, rounds: int, dtype: torch.dtype | None) -> wima.Simulation:
    simulation = wima.simulate(
        heterogeneous(),
        algorithm,
        averagers=[wima.WIMA(3)],
        storage=Storage(dtype=dtype),
        rounds=rounds,
        clients_per_round=2,
        lr=0.1,
        epochs=2,
        eval_every=0,
        engine="serial",
    )
    for _ in simulation:
        pass
    return simulation


@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_how_past_models_are_stored_does_not_steer_the_run(algorithm):
    plain, rounded = (played(algorithm, 50, dtype) for dtype in (None, torch.bfloat16))
    assert torch.equal(plain.w, rounded.w)
    assert not torch.equal(plain.vectors()["wima3"], rounded.vectors()["wima3"])


@pytest.mark.parametrize("algorithm", REMEMBERING[:2])
def test_the_server_keeps_the_mean_of_what_clients_remember(algorithm):
    """SCAFFOLD: c = mean of all c_i.  FedDyn: h = mean of all lam_i."""
    simulation = played(algorithm, 2000, torch.bfloat16)
    remembered = simulation.state.memory.visited()
    assert len(remembered) == CLIENTS
    kept = torch.stack([state[0] for state in remembered.values()])
    rounding = torch.finfo(torch.float32).eps * float(kept.abs().max())  # of one round
    drift = float((simulation.state.server[0] - kept.mean(dim=0)).abs().max())
    assert drift <= 10 * rounding


def remembering(clients: int, **options) -> ClientMemory:
    """SCAFFOLD's memory; client i remembers the vector (i, i, i)."""
    filled = ClientMemory(wima.Scaffold().client_init, **options)
    for i in range(clients):
        filled.write(i, wima.Scaffold().client_init(torch.zeros(3))._replace(c=torch.full((3,), i)))
    filled.commit()
    return filled


def test_saving_looks_at_each_vector_once(tmp_path, monkeypatch):
    filled, looked, size = remembering(300), [], memory.size
    monkeypatch.setattr(memory, "size", lambda tree: looked.append(len(tree)) or size(tree))
    filled.save(Segments(tmp_path))
    assert sum(looked) <= 300


def test_little_is_kept_of_clients_whose_states_are_in_files(tmp_path):
    store = Segments(tmp_path)
    segments, clients = remembering(2000).save(store), 2000
    kept = ClientMemory(wima.Scaffold().client_init, store=store, budget=0.0)
    tracemalloc.start()
    kept.load(store, segments, torch.zeros(3))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 200 * clients < memory.OVERHEAD * clients
    assert all(float(kept.read(i, torch.zeros(3)).c[0]) == i for i in (0, 7, 1999))


def test_segments_name_tensors_by_client_and_place_in_its_state(tmp_path):
    store, h = Segments(tmp_path), torch.ones(3)
    structure = {"tuple": [{"tensor": "12.0"}, {"value": 4}]}
    segment = store.write("clients", {"12.0": h}, {"12": structure})
    loaded = ClientMemory(wima.AdaBest().client_init, store=store)
    loaded.load(store, [segment], torch.zeros(3))
    h_read, last = loaded.read(12, torch.zeros(3))
    assert torch.equal(h_read, h) and last == 4 and loaded.save(store) == [segment]


@pytest.mark.parametrize("engine", ["serial", "batched"])
def test_a_clients_memory_is_read_once_per_visit(engine, monkeypatch):
    visits, read = [], ClientMemory.read
    monkeypatch.setattr(
        ClientMemory, "read", lambda self, i, w: visits.append(i) or read(self, i, w)
    )
    x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
    data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
    task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
    wima.run(task, wima.Scaffold(), engine=engine, rounds=3, clients_per_round=2, lr=0.1)
    assert visits == [0, 1] * 3

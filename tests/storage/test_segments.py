"""What is kept in files is what would be in memory."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import wima
from tests.helpers.states import same
from tests.helpers.unequal import OPTIONS, task_of
from wima.core.errors import RunError, UsageError
from wima.simulation.clients import ClientMemory
from wima.storage.ring import BLOCK, Ring
from wima.storage.segments import Segments, Storage
from wima.storage.states import decode, encode, size


class Leaf(NamedTuple):
    v: Tensor
    k: int


class Tree(NamedTuple):
    leaf: Leaf
    other: tuple
    nothing: None
    dtype: torch.dtype


def grown(n: int) -> Tree:
    return Tree(Leaf(torch.full((3,), float(n)), n), (n, 0.1 * n, "x", True), None, torch.float32)


def test_a_state_comes_back_with_its_classes():
    tensors: dict[str, Tensor] = {}
    structure = encode(grown(3), "s", tensors, {})
    assert same(decode(structure, grown(0), tensors.__getitem__, {}), grown(3))
    assert size(grown(3)) == 12


def test_what_cannot_be_stored_is_named():
    with pytest.raises(UsageError, match=r"s.1 is a dict, which a checkpoint cannot store"):
        encode((1, {}), "s", {}, {})


def test_segments_give_back_what_was_written_and_know_damage(tmp_path):
    store = Segments(tmp_path)
    x = torch.randn(5)
    name = store.write("a", {"x": x, "same memory": x[:]}, {"about": [1]})
    assert torch.equal(store.read(name, "x"), x) and store.about(name) == {"about": [1]}
    fresh = Segments(tmp_path)
    fresh.verify(name, store.sums[name])
    assert fresh.write("a", {}) > name
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        Segments(tmp_path).verify(name, store.sums[name])
    for outside in ("../x.safetensors", "/etc/x.safetensors", "x.txt", ""):
        with pytest.raises(RunError, match="is not a segment name"):
            store.verify(outside, "")
    store.keep([])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_ring_in_files_is_a_ring_in_memory(tmp_path, dtype):
    like, store = torch.zeros(4), Segments(tmp_path)
    rings = [Ring(5, like, dtype=dtype), Ring(5, like, dtype=dtype, mapped=store)]
    for n in range(3 * BLOCK):
        for ring in rings:
            ring.push(torch.full((4,), n + 0.123))
        for back in range(1, min(n + 1, 5) + 1):
            assert torch.equal(*(ring.ago(back) for ring in rings))
            assert rings[0].ago(back).dtype == torch.float32
    with pytest.raises(IndexError):
        rings[1].ago(6)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_ring_saves_only_what_is_new_and_comes_back(tmp_path, mapped):
    like, store = torch.zeros(4), Segments(tmp_path)
    ring = Ring(6, like, mapped=store if mapped else None)
    for n in range(20):
        ring.push(torch.full((4,), float(n)))
        if n % 3 == 0:
            segments = ring.save(store, "ring")
            held = sorted(k for name in segments for k in store.about(name))
            assert set(range(max(0, n - 5), n + 1)) <= set(held) and len(held) == len(set(held))
            again = Ring(6, like, mapped=store if mapped else None)
            again.load(store, segments, ring.count)
            for back in range(1, min(n + 1, 6) + 1):
                assert torch.equal(again.ago(back), ring.ago(back))


def test_large_states_are_written_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("wima.storage.ring.PART", 40)
    monkeypatch.setattr("wima.simulation.clients.PART", 20)
    store, w = Segments(tmp_path), torch.zeros(4)
    ring, memory = Ring(9, w), memory_of()
    for n in range(9):
        ring.push(w + n)
        memory.write(n, grown(n))
    memory.commit()
    for segments in (ring.save(store, "ring"), memory.save(store)):
        held = [len(store.about(name)) for name in segments]
        assert sum(held) == 9 and max(held) == 2
    again = memory_of(store=store)
    again.load(store, memory.save(store), w)
    assert all(same(m.read(n, w), grown(n)) for m in (again, memory) for n in range(9))


def memory_of(**options) -> ClientMemory:
    return ClientMemory(lambda w: grown(0), **options)


@pytest.mark.parametrize("budget", [0.0, 30.0, float("inf")])
def test_client_memory_in_files_is_client_memory(tmp_path, budget):
    w, store = torch.zeros(3), Segments(tmp_path)
    plain, filed = memory_of(), memory_of(store=store, budget=budget)
    draw = torch.Generator().manual_seed(0)
    for t in range(40):
        for client in set(torch.randint(8, (3,), generator=draw).tolist()):
            for memory in (plain, filed):
                assert same(memory.read(client, w), plain.read(client, w))
                memory.write(client, grown(100 * t + client))
        plain.commit()
        filed.commit()
        if t % 7 == 0:
            segments = filed.save(store)
            again = memory_of(store=store, budget=budget)
            again.load(store, segments, w)
            again.read(0, w)
            assert same(tuple(again.visited().items()), tuple(plain.visited().items()))
            store.keep(segments)
    assert same(tuple(filed.visited().items()), tuple(plain.visited().items()))
    assert len(list(tmp_path.iterdir())) < 8  # what was replaced is let go


def test_a_round_that_is_given_up_leaves_no_trace():
    memory, w = memory_of(), torch.zeros(3)
    memory.write(1, grown(5))
    memory.discard()
    memory.commit()
    assert same(memory.read(1, w), grown(0)) and not memory.visited()


@pytest.mark.parametrize("algorithm", [wima.Scaffold(), wima.FedDyn(), wima.AdaBest()])
def test_a_run_in_files_is_a_run_in_memory(tmp_path, algorithm):
    averagers = [wima.WIMA(3), wima.WIMA(3, buckets=2), wima.LAWA(k=2, every=2)]
    storage = Storage(Segments(tmp_path), mapped_window=True, client_bytes=100.0)
    runs = [
        wima.run(task_of(), algorithm, averagers=averagers, storage=s, **OPTIONS)
        for s in (None, storage)
    ]
    for name, w in runs[0].vectors.items():
        assert torch.equal(w, runs[1].vectors[name])
    assert runs[0].records[-1].metrics == runs[1].records[-1].metrics


def test_a_window_in_bfloat16_is_the_mean_of_the_rounded_models():
    storage = Storage(dtype=torch.bfloat16)
    options = {**OPTIONS, "averagers": [wima.WIMA(3)], "storage": storage, "eval_every": 0}
    with wima.simulate(task_of(), **options) as simulation:
        models = [simulation.w.clone() for _ in simulation]
        rounded = [w.bfloat16().double() for w in models[-3:]]
        torch.testing.assert_close(simulation.vectors()["wima3"], (sum(rounded) / 3).float())
        assert torch.equal(simulation.vectors()["plain"], models[-1])

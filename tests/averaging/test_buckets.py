"""Buckets hold every window of a run, to within a factor, in a few sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings as how, strategies as st

from wima import WIMA, UsageError
from wima.averaging import Averages
from wima.averaging.wima import DEFAULT_K, Buckets
from wima.storage.states import decode, encode, size

counts, ks = st.integers(1, 300), st.integers(2, 6)
limits = st.none() | st.integers(1, 100)


def walk(count: int, d: int = 5, dtype=torch.float32) -> torch.Tensor:
    """w^1, w^2, ... of a random walk, as rows."""
    draw = torch.Generator().manual_seed(count)
    return torch.randn(count, d, generator=draw, dtype=dtype).cumsum(0)


def filled(models: torch.Tensor, k: int, longest: int | None = None) -> Buckets:
    buckets = Buckets.start(torch.full_like(models[0], 1e9), k, longest)
    for w in models:
        buckets = buckets.push(w)
    return buckets


@how(max_examples=25, deadline=None)
@given(counts, ks, limits, st.sampled_from([torch.float32, torch.float64]))
def test_each_window_is_the_mean_of_the_models_that_it_says(count, k, longest, dtype):
    models = walk(count, dtype=dtype)
    buckets = filled(models, k, longest)
    means = torch.stack([buckets.mean(n + 1) for n in range(len(buckets.sums))])
    expected = [models[-window:].double().mean(0) for window in buckets.windows]
    assert means.dtype == dtype
    close = {"rtol": torch.finfo(dtype).eps, "atol": 1e-13}
    torch.testing.assert_close(means, torch.stack(expected).to(dtype), **close)


@how(max_examples=40, deadline=None)
@given(counts, ks, limits)
def test_every_window_is_there_to_within_a_factor(count, k, longest):
    buckets = filled(torch.ones(count, 1), k, longest)
    windows = buckets.windows
    assert windows[0] == 1 and windows[-1] <= count
    assert longest is not None or windows[-1] == count
    for window in range(1, min(count, longest or count) + 1):
        below = windows[buckets.within(window) - 1]
        assert (k - 1) * window <= k * below <= k * window  # in integers, which do not round
        low, high = k * window, (k + 1) * window
        assert any(low <= (k + 1) * there and k * there <= high for there in windows)


@how(max_examples=30, deadline=None)
@given(counts, ks, limits)
def test_there_are_at_most_k_buckets_of_a_size_and_never_more_sums_than_planned(count, k, longest):
    buckets, most = Buckets.start(torch.zeros(1), k, longest), 1
    for _ in range(count):
        buckets = buckets.push(torch.ones(1))
        most = max(most, len(buckets.sums))
        assert all(buckets.sizes.count(size) <= k for size in buckets.sizes)
        assert [float(s) for s in buckets.sums] == list(buckets.sizes) == sorted(buckets.sizes)
        assert sum(buckets.sizes[:-1]) < (longest or count + 1)
    assert most == Buckets.most(count, k, longest)


@pytest.mark.parametrize(("k", "sums"), [(DEFAULT_K, 24), (DEFAULT_K + 1, 34)])
def test_ten_thousand_models_need_thirty_sums_at_most_with_the_default(k, sums):
    buckets, w, most = Buckets.start(torch.zeros(1000), k), torch.ones(1000), 0
    for _ in range(10_000):
        buckets = buckets.push(w)
        most = max(most, len(buckets.sums))
    assert most == Buckets.most(10_000, k) == sums
    assert (sums <= 30) == (k == DEFAULT_K)
    assert torch.equal(buckets.mean(len(buckets.sums)), w)


@how(max_examples=30, deadline=None)
@given(counts, ks, st.integers(0, 5))
def test_inner_products_are_those_with_the_means_of_all_windows(count, k, length):
    models, v = walk(count), torch.linspace(-1, 2, 5)[:length]
    buckets = filled(models, k)
    products = buckets.inner(v).cumsum(0) / torch.tensor(buckets.windows)
    means = [models[-window:, :length].double().mean(0) for window in buckets.windows]
    expected = torch.stack([(mean * v.double()).sum() for mean in means])
    assert products.dtype == torch.float64
    torch.testing.assert_close(products, expected, rtol=1e-12, atol=1e-12)


def test_long_vectors_are_summed_in_pieces_whatever_the_number_of_threads():
    models, v = walk(6, d=100_003), torch.linspace(-1, 2, 100_001)
    buckets, threads, found = filled(models, 2), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append((buckets.inner(v), buckets.mean(3)))
    finally:
        torch.set_num_threads(threads)
    for products, mean in found:
        assert torch.equal(products, found[0][0]) and torch.equal(mean, found[0][1])
    expected = [float(torch.dot(s[: len(v)], v.double())) for s in buckets.sums]
    torch.testing.assert_close(found[0][0], torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(found[0][1], models[-buckets.windows[2] :].double().mean(0).float())


def test_before_the_first_model_the_mean_is_the_initial_one():
    w = torch.tensor([1.5, -2.0])
    buckets = Buckets.start(w)
    assert buckets.windows == (0,) and torch.equal(buckets.mean(1), w)
    assert buckets.push(2 * w).windows == (1,)


@pytest.mark.parametrize("longest", [None, 9])
def test_no_more_memory_is_ever_taken_than_for_the_most_sums(longest):
    buckets, taken = Buckets.start(torch.zeros(3), longest=longest), set()
    for w in walk(100, d=3):
        copy = w.clone()
        buckets = buckets.push(w)
        taken |= {s.data_ptr() for s in (*buckets.sums, *buckets.spare)}
        assert torch.equal(w, copy) and w.data_ptr() not in taken
    most = Buckets.most(100, longest=longest)
    assert len(taken) == len(buckets.sums) + len(buckets.spare) == most
    assert size(buckets) == most * 3 * 8


@pytest.mark.parametrize("longest", [None, 20])
def test_encoded_and_decoded_buckets_go_on_as_before(longest):
    models, tensors = walk(90), {}
    buckets = filled(models[:50], 3, longest)
    json = encode(buckets, "state", tensors, {})
    stored = {name: t.clone() for name, t in tensors.items()}
    again = decode(json, Buckets.start(models[0], 3, longest), stored.__getitem__, {})
    assert isinstance(again, Buckets)
    assert len(tensors) == len(buckets.sums) and buckets.spare and not again.spare
    for w in models[50:]:
        buckets, again = buckets.push(w), again.push(w)
    assert again.sizes == buckets.sizes and again[2:5] == buckets[2:5]
    assert all(torch.equal(a, b) for a, b in zip(again.sums, buckets.sums, strict=True))


@pytest.mark.parametrize("k", [1, 0, -3, 2.0, "4", True, None])
def test_too_few_buckets_are_refused(k):
    with pytest.raises(UsageError, match=r"^k must be an integer >= 2, got"):
        Buckets.start(torch.zeros(2), k)
    with pytest.raises(UsageError, match=r"^longest must be a positive integer, got 0\."):
        Buckets.start(torch.zeros(2), longest=0)


@how(max_examples=20, deadline=None)
@given(counts, ks, st.integers(1, 100))
def test_wima_in_buckets_is_the_mean_of_as_many_models_as_it_says(count, k, window):
    models, wima = walk(count), WIMA(window, buckets=k)
    watch = Averages({"wima": wima}, models[0], dtype=torch.bfloat16)  # of the unused ring
    for w in models:
        watch.update(w)
    used, asked = wima.rule().used(watch.states["wima"]), min(window, count)
    assert (k - 1) * asked <= k * used <= k * asked
    expected = models[-used:].double().mean(0).float()
    torch.testing.assert_close(watch.vector("wima"), expected, rtol=1e-6, atol=1e-13)
    assert watch.ring.rows.numel() == 0


@how(max_examples=25, deadline=None)
@given(st.integers(1, 400), ks, st.sampled_from([0.01, 0.1, 0.25, 0.9]))
def test_a_share_is_of_the_models_so_far_and_never_takes_more_sums_than_planned(count, k, share):
    models, averager = walk(count), WIMA(share, buckets=k)
    watch, most = Averages({"share": averager}, torch.zeros(5)), 1
    for t, w in enumerate(models, 1):
        watch.update(w)
        used, asked = watch.used()["share"], max(1, int(share * t))
        assert (k - 1) * asked <= k * used <= k * asked
        most = max(most, len(watch.states["share"].sums))
    expected = models[-used:].double().mean(0).float()
    torch.testing.assert_close(watch.vector("share"), expected)
    assert 8 * 5 * most <= averager.rule().memory(models[0], count)


def test_a_window_that_its_name_tells_is_not_told_again():
    w = torch.zeros(2)
    window, buckets = WIMA(3).rule(), WIMA(3, buckets=2).rule()
    assert window.used(window.init(w)) is None
    assert buckets.used(buckets.init(w)) == 0


@pytest.mark.parametrize("buckets", [1, 0, -4, 4.0, "4", True])
def test_a_wrong_number_of_buckets_is_refused(buckets):
    with pytest.raises(UsageError) as error:
        WIMA(1000, buckets=buckets)
    message = f"WIMA.buckets must be an integer >= 2, got {buckets!r}."
    assert str(error.value) == message

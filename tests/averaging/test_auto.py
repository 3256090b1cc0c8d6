"""The window that chooses itself: its scores, its choice, and that training does not notice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings as how, strategies as st

import wima
from tests.helpers.interrupted import killed_after, outcome, settings_of
from tests.helpers.unequal import OPTIONS, one_bad_example, task_of
from wima import WIMA, Algorithm
from wima.algorithms import BY_NAME
from wima.averaging import Averages
from wima.averaging.wima import CANDIDATES, LEAST, NEAR, REACH, RECENT, AutoWindow, Buckets
from wima.core.errors import UsageError
from wima.runs.launch import launch, resume
from wima.runs.run import read_run
from wima.simulation.options import Faults
from wima.simulation.round import Setup

AUTO = WIMA("auto")


def naive(models: list[torch.Tensor], fresh: list[torch.Tensor], k: int) -> tuple[list, int]:
    """Scores and choice as the docstring has them; windows are those that the buckets have."""
    scores, judged, window, rounds = [0.0] * len(CANDIDATES), [0] * len(CANDIDATES), 1, 0
    state = AutoWindow(k).init(models[0])
    for t, (w, g) in enumerate(zip(models, fresh, strict=True)):
        if t:
            rounds += 1
            for j, candidate in enumerate(CANDIDATES):
                if candidate > max(1, t // REACH):
                    continue
                there = max(n for n in state.buckets.windows if n <= candidate)
                mean = torch.stack(models[t - there : t]).double().mean(0)
                score = float(g.double() @ (mean - models[t - 1].double())[: len(g)])
                judged[j] += 1
                scores[j] += (score - scores[j]) / min(judged[j], max(LEAST, RECENT * rounds))
            least = min(scores)
            near = [n for n, s in zip(CANDIDATES, scores, strict=True) if s <= NEAR * least]
            window = max(near) if least < 0 else 1
        state = AutoWindow(k).update(state, w, None)
    return scores, window


@how(max_examples=25, deadline=None)
@given(st.integers(1, 150), st.integers(2, 4), st.integers(0, 2), st.integers(0, 2**31))
def test_scores_and_choice_are_those_of_the_definition(rounds, k, rest, seed):
    draw = torch.Generator().manual_seed(seed)
    models = list(torch.randn(rounds, 6, generator=draw).cumsum(0))
    fresh = list(torch.randn(rounds, 6 - rest, generator=draw))
    watch = Averages({"auto": WIMA("auto", buckets=k)}, models[0])
    for w, g in zip(models, fresh, strict=True):
        watch.update(w, g)
    scores, window = naive(models, fresh, k)
    state = watch.states["auto"]
    torch.testing.assert_close(state.scores.tolist(), scores, rtol=1e-9, atol=1e-9)
    assert state.window == window
    used = watch.used()["auto"]
    assert used <= window
    expected = torch.stack(models[-used:]).double().mean(0).float()
    torch.testing.assert_close(watch.vector("auto"), expected)


def test_noise_lengthens_the_window_and_progress_shortens_it():
    """Gradients at w of 1/2 |w|^2: w goes straight to 0, or jumps around it."""

    def used(noise: float, rate: float) -> int:
        draw = torch.Generator().manual_seed(0)
        w, watch = torch.full((50,), 10.0), Averages({"auto": AUTO}, torch.full((50,), 10.0))
        for _ in range(200):
            g = w + noise * torch.randn(50, generator=draw)
            w = w - rate * g
            watch.update(w, g)
        return watch.used()["auto"]

    assert used(noise=0.0, rate=0.01) == 1
    assert used(noise=1.0, rate=0.5) > 30


def test_windows_hold_a_quarter_of_the_models_at_most_and_sums_are_as_few_as_planned():
    draw = torch.Generator().manual_seed(0)
    watch, most, w = Averages({"auto": AUTO}, torch.zeros(4)), 0, torch.zeros(4)
    for t in range(1, 2001):
        gradient, w = w, torch.randn(4, generator=draw)  # around the optimum, 0: average all
        watch.update(w, gradient)
        assert watch.used()["auto"] <= max(1, t // REACH)
        buckets = watch.states["auto"].buckets
        most = max(most, len(buckets.sums))
        assert buckets.windows[-1] >= t // REACH
    assert watch.used()["auto"] > 2000 // REACH // 2
    assert 8 * 4 * most <= AUTO.rule().memory(w, 2000) < 8 * 4 * Buckets.most(2000)


def test_a_round_that_brings_no_gradients_or_infinite_ones_changes_no_score():
    watch = Averages({"auto": AUTO}, torch.zeros(3))
    for t in range(5):
        watch.update(torch.full((3,), float(t)), torch.ones(3))
    before = watch.states["auto"].scores.clone()
    watch.update(torch.full((3,), 9.0))
    assert torch.equal(watch.states["auto"].scores, before)
    watch.update(torch.full((3,), 9.0), torch.tensor([1.0, torch.inf, 0.0]))
    assert torch.equal(watch.states["auto"].scores, before)


def models_and_windows(algorithm: Algorithm, engine: str, averagers: list, **options):
    with wima.simulate(
        options.pop("task", None) or task_of(),
        algorithm,
        averagers=averagers,
        engine=engine,
        **{**OPTIONS, "rounds": 12, **options},
    ) as simulation:
        found = [(simulation.w.clone(), dict(record.windows)) for record in simulation]
    return [w for w, _ in found], [windows for _, windows in found]


@pytest.mark.parametrize("name", BY_NAME)
def test_training_does_not_notice_and_every_engine_chooses_the_same(name):
    algorithm = BY_NAME[name]()
    plain, nothing = models_and_windows(algorithm, "serial", [])
    assert nothing[-1] == {}
    models, windows = models_and_windows(algorithm, "serial", [AUTO])
    assert all(map(torch.equal, models, plain))
    assert windows[-1].keys() == {"wima-auto"}
    assert models_and_windows(algorithm, "reference", [AUTO])[1] == windows


def test_processes_choose_the_same():
    _, expected = models_and_windows(wima.Scaffold(), "serial", [AUTO])
    _, windows = models_and_windows(wima.Scaffold(), "processes", [AUTO], workers=2)
    assert windows == expected


@pytest.mark.parametrize("name", ["fedavg", "fedcm", "scaffold", "mimelite", "adabest"])
@pytest.mark.parametrize("engine", ["serial", "reference", "batched"])
def test_client_gradient_is_what_the_clients_own_gradients_add_up_to(name, engine, monkeypatch):
    """Without the directions of earlier rounds that an algorithm mixes in; MIMELite's are full."""
    expected, found = [], []
    kind = BY_NAME[name]
    monkeypatch.setattr(kind, "path_gradient", True)

    def finish(self, visit, server, client, original=kind.client_finish):
        along = visit.path_gradient * visit.steps * visit.lr
        sums.append(along if visit.gradient is None else visit.gradient)
        return original(self, visit, server, client)

    sums: list = []
    monkeypatch.setattr(kind, "client_finish", finish)
    with wima.simulate(
        task_of(), kind(), averagers=[AUTO], engine=engine, weighting="uniform", **OPTIONS
    ) as simulation:
        sums.clear()  # the hooks were tried, to find out what is sent
        for _ in simulation:
            expected.append(torch.stack(sums).mean(0))
            found.append(simulation.state.client_gradient)
            sums.clear()
    scale = getattr(simulation.setup.algorithm, "alpha", 1.0) if name == "fedcm" else 1.0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, scale * other, rtol=1e-3, atol=1e-6)


def test_for_mime_client_gradient_is_the_full_gradient_that_it_asks_for():
    for engine in ("serial", "reference"):
        with wima.simulate(
            task_of(), wima.Mime(), averagers=[AUTO], engine=engine, **OPTIONS
        ) as simulation:
            next(simulation)
            assert torch.equal(simulation.state.client_gradient, simulation.state.server.c)


def test_rounds_without_a_usable_update_are_not_judged():
    options = {"task": one_bad_example(), "faults": Faults(exclude=True), "clients_per_round": 1}
    _, windows = models_and_windows(wima.FedAvg(), "serial", [AUTO], **options)
    assert windows == models_and_windows(wima.FedAvg(), "reference", [AUTO], **options)[1]


def test_nothing_is_computed_that_nobody_asks_for():
    with wima.simulate(task_of(), wima.Scaffold(), averagers=[WIMA(3)], **OPTIONS) as simulation:
        next(simulation)
        assert (
            simulation.state.client_gradient is None and not simulation.setup.wants_client_gradient
        )
    assert not Setup._field_defaults["wants_client_gradient"]


def test_a_killed_run_goes_on_to_the_same_choices(tmp_path):
    settings = settings_of(averagers=["wima:window=auto"], algorithm="fedcm")
    launch(settings, tmp_path / "whole")
    killed_after(17, settings, tmp_path / "run")
    resume(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    windows = [record["windows"]["wima-auto"] for record in read_run(tmp_path / "run").lines()]
    assert max(windows) > 1


def test_other_words_than_auto_are_refused():
    for window in ("automatic", 0, -1, 2.5, None):
        with pytest.raises(UsageError, match=r"WIMA.window must be .* in \(0, 1\) or 'auto', got"):
            WIMA(window)
    with pytest.raises(UsageError, match=r"WIMA.buckets must be an integer >= 2, got 0"):
        WIMA("auto", buckets=0)

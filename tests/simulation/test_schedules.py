"""Schedules are their formulas, records tell the rate of each round, and clients train with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import wima
from tests.helpers import pseudocode
from tests.helpers.toys import quadratics
from wima import Constant, Cosine, Cyclic, Exponential, UsageError
from wima.simulation.options import SCHEDULES

ROUNDS, LR = 12, 0.3
random = np.random.default_rng(4)
A, B = random.uniform(0.5, 2, size=(5, 3)), random.normal(size=(5, 3))
SIZES = (3, 12, 7, 21, 10)


@dataclass(frozen=True)
class Warmup:
    """A schedule of a user's own."""

    until: int = 4

    def factor(self, t: int, rounds: int) -> float:
        return min(1.0, (t + 1) / self.until)


EXAMPLES = [
    Constant(),
    Exponential(decay=0.8),
    Cosine(final=0.1),
    Cyclic(start=0.5, cycle=3),
    Cyclic(start=2, cycle=4, phase="izmailov"),
    Warmup(),
]


def factors(schedule: wima.Schedule, rounds: int) -> list[float]:
    return [schedule.factor(t, rounds) for t in range(rounds)]


def test_constant_keeps_the_rate():
    assert factors(Constant(), 5) == [1.0] * 5


@pytest.mark.parametrize("decay", [0.5, 0.998, 1])
def test_exponential_multiplies_by_its_decay_after_each_round(decay):
    expected = [1.0]
    for _ in range(99):
        expected.append(expected[-1] * decay)
    assert factors(Exponential(decay=decay), 100) == pytest.approx(expected, rel=1e-13)
    assert factors(Exponential(decay=decay), 7) == factors(Exponential(decay=decay), 100)[:7]


@pytest.mark.parametrize("final", [0, 0.01, 0.5, 1])
def test_cosine_goes_from_1_to_its_final_value_after_the_last_round(final):
    schedule, n = Cosine(final=final), 40
    angle = np.pi * np.arange(n) / n
    expected = final + (1 - final) * np.cos(angle / 2) ** 2  # (1 + cos x)/2 = cos^2(x/2)
    assert factors(schedule, n) == pytest.approx(expected, rel=1e-13)
    assert schedule.factor(0, n) == 1 and schedule.factor(n, n) == pytest.approx(final)
    assert schedule.factor(n // 2, n) == pytest.approx((1 + final) / 2)
    assert (np.diff(factors(schedule, n)) < 0).all() or final == 1


def test_the_cycle_of_the_paper_falls_from_nine_tenths_to_a_hundredth():
    rates = [0.1 * Cyclic(start=20, cycle=10).factor(t, 100) for t in range(20, 30)]
    assert rates == pytest.approx(np.linspace(0.0901, 0.001, 10))  # ALGORITHMS.md, section 6


@pytest.mark.parametrize("phase", ["fedsam", "izmailov"])
@pytest.mark.parametrize(("start", "cycle"), [(0, 1), (0, 5), (7, 1), (20, 10), (23, 10), (59, 20)])
def test_cyclic_is_the_rate_of_the_pseudocode(start, cycle, phase):
    schedule, n = Cyclic(start=start, cycle=cycle, phase=phase), 60
    rates = [0.1 * factor for factor in factors(schedule, n)]
    expected = [pseudocode.swa_rate(t, 0.1, start, cycle, phase) for t in range(n)]
    assert rates == pytest.approx(expected, rel=1e-13)
    assert rates[:start] == [0.1] * start


def test_phases_differ_unless_the_start_is_a_multiple_of_the_cycle():
    for start, same in ((20, True), (23, False)):
        one, two = (
            factors(Cyclic(start=start, cycle=10, phase=phase), 60)
            for phase in ("fedsam", "izmailov")
        )
        assert (one == two) is same


def test_izmailov_collects_where_the_rate_is_lowest_and_fedsam_one_round_later():
    start, cycle, n = 20, 10, 100
    low = [t for t in range(start, n) if (t - start) % cycle == cycle - 1]
    rates = factors(Cyclic(start=start, cycle=cycle), n)
    assert [t for t in range(n) if rates[t] == min(rates)] == low
    for phase, expected in (("izmailov", low), ("fedsam", [t + 1 for t in low if t + 1 < n])):
        swa, collected = wima.SWA(start, cycle, phase).for_run(n), []
        state = swa.init(torch.zeros(1))
        for t in range(n):
            before, state = state.collected, swa.update(state, torch.zeros(1), None)
            collected += [t] * (state.collected - before)
        assert collected == expected


def test_cyclic_falls_to_low():
    assert factors(Cyclic(start=0, cycle=4, low=0.2), 4) == pytest.approx([0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize(("share", "start"), [(0.75, 45), (0.5, 30), (0.01, 0)])
def test_a_cyclic_start_may_be_a_share_of_the_rounds(share, start):
    one, two = Cyclic(start=share, cycle=7), Cyclic(start=start, cycle=7)
    assert factors(one, 60) == factors(two, 60)


@pytest.mark.parametrize("schedule", EXAMPLES)
def test_records_carry_the_scheduled_rate(schedule):
    task, settings = quadratics(A, B, SIZES), {"rounds": ROUNDS, "clients_per_round": 2}
    records = wima.run(task, schedule=schedule, lr=LR, **settings).records
    expected = [LR * factor for factor in factors(schedule, ROUNDS)]
    assert [record.lr for record in records] == expected
    assert len(set(expected)) > 1 or isinstance(schedule, Constant)


@pytest.mark.parametrize("engine", ["reference", "serial"])
@pytest.mark.parametrize("schedule", EXAMPLES)
def test_clients_train_with_the_scheduled_rate(schedule, engine):
    """A run is its rounds, each played alone with a constant rate from where the last one ended."""
    simulation = wima.simulate(
        quadratics(A, B, SIZES), schedule=schedule, lr=LR, rounds=ROUNDS, clients_per_round=2,
        engine=engine,
    )  # fmt: skip
    w = np.zeros(3)
    for t, record in enumerate(simulation):
        lr = LR * schedule.factor(t, ROUNDS)
        only = {"cohorts": lambda seed, t, c=record.cohort: c, "rounds": 1, "clients_per_round": 2}
        alone = wima.run(quadratics(A, B, SIZES, start=w.copy()), lr=lr, engine=engine, **only)
        w = alone.vectors["plain"].numpy()
        assert torch.equal(simulation.w, torch.from_numpy(w))


def test_without_a_schedule_the_rate_is_constant():
    settings = {"lr": LR, "rounds": 4, "clients_per_round": 2}
    none, constant = (
        wima.run(quadratics(A, B, SIZES), schedule=schedule, **settings)
        for schedule in (None, Constant())
    )
    assert [record.lr for record in none.records] == [LR] * 4
    assert torch.equal(none.vectors["plain"], constant.vectors["plain"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Exponential(decay=0), "Exponential.decay must be a number in (0, 1], got 0."),
        (
            lambda: Exponential(decay=1.01),
            "Exponential.decay must be a number in (0, 1], got 1.01.",
        ),
        (lambda: Cosine(final=-0.1), "Cosine.final must be a number in [0, 1], got -0.1."),
        (lambda: Cosine(final=2), "Cosine.final must be a number in [0, 1], got 2."),
        (lambda: Cyclic(cycle=0), "Cyclic.cycle must be a positive integer, got 0."),
        (lambda: Cyclic(cycle=2.0), "Cyclic.cycle must be a positive integer, got 2.0."),
        (lambda: Cyclic(low=0), "Cyclic.low must be a number in (0, 1], got 0."),
        (lambda: Cyclic(start=-1), "Cyclic.start must be a number in [0, inf), got -1."),
        (lambda: Cyclic(start=1.5), "must be a whole round or a share in (0, 1), got 1.5."),
        (lambda: Cyclic(phase="linear"), "Cyclic.phase must be one of fedsam, izmailov"),
    ],
)
def test_values_outside_their_range_are_refused(make, words):
    with pytest.raises(UsageError) as error:
        make()
    assert words in str(error.value)


@pytest.mark.parametrize("start", [10, 5000])
def test_a_cyclic_start_after_the_end_is_refused_before_the_first_round(start):
    message = rf"Cyclic\.start must be a round of the run, 0 \.\.\. 9, got {start}\."
    settings = {"rounds": 10, "clients_per_round": 2, "lr": LR}
    with pytest.raises(UsageError, match=message):
        wima.simulate(quadratics(A, B, SIZES), schedule=Cyclic(start=start), **settings)
    assert wima.run(quadratics(A, B, SIZES), schedule=Cyclic(start=9), **settings).records


def test_all_schedules_have_a_name_for_settings():
    assert set(SCHEDULES.values()) == {Constant, Exponential, Cosine, Cyclic}
    assert all(name == kind.__name__.lower() for name, kind in SCHEDULES.items())

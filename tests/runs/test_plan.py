"""What a run says that it will need."""

from __future__ import annotations

from collections import namedtuple

import pytest

from tests.helpers.interrupted import copy_of, outcome
from tests.helpers.unequal import SIZES, task_of
from wima import WIMA, Averager, Scaffold
from wima.averaging.wima import REACH, Buckets
from wima.core.errors import UsageError
from wima.runs import build
from wima.runs.build import Plan, gigabytes, make_plan
from wima.runs.folder import FOLDER
from wima.runs.launch import launch, resume
from wima.runs.settings import load_settings, make_settings
from wima.simulation.clients import OVERHEAD
from wima.storage.states import size


def plan_of(averager: Averager = WIMA(10), **settings) -> Plan:  # noqa: B008
    made = make_settings({"clients_per_round": 4, **settings})
    return make_plan(made, task_of(), Scaffold(), [averager])


def test_bfloat16_halves_past_models_and_leaves_what_clients_remember():
    whole, half = (plan_of(store_dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert half.window * 2 == whole.window > 0
    assert half.clients == whole.clients > 0


def test_buckets_are_planned_as_large_as_they_grow():
    wima, rounds, task = WIMA(50, buckets=3), 400, task_of()
    plan = plan_of(wima, rounds=rounds)
    w = task.init(0)
    rule = wima.rule()
    state, largest = rule.init(w), 0
    for _ in range(rounds):
        state = rule.update(state, w, None)
        largest = max(largest, size(state))
    assert (
        plan.averages == largest == 13 * 8 * len(w)
    )  # 3 of 1, 2, 4 and 8, and one that reaches 50
    assert plan.window == 0 and f"averages {gigabytes(largest)}" in plan.in_words(make_settings({}))
    assert plan_of(wima, rounds=5).averages == 4 * 8 * len(w)  # 1, 1, 1 and 2


def test_the_plan_of_a_preset_states_the_sums_of_the_window_that_chooses_itself():
    settings, w = load_settings("digits", []), task_of().init(0)
    plan = make_plan(settings, task_of(), Scaffold(), settings.make("averagers"))
    buckets, most = Buckets.start(w), 0
    for t in range(1, settings.rounds + 1):
        buckets = buckets.push(w, max(1, t // REACH))
        most = max(most, len(buckets.sums))
    assert plan.averages == (1 + most) * 8 * len(w)  # W = 50 has a single sum
    assert f"averages {gigabytes(plan.averages)}" in plan.in_words(settings)


def test_clients_need_memory_beyond_what_is_kept_in_memory_of_their_states():
    few, many = (plan_of(client_memory_gb=0, rounds=rounds) for rounds in (1, 2))
    assert many.overhead - few.overhead == OVERHEAD * (
        len(SIZES) - 4
    )  # visited in the second round


@pytest.mark.parametrize(("engine", "said"), [("auto", 1), ("serial", 0)])
def test_the_engine_is_reported_where_it_was_chosen(tmp_path, engine, said):
    settings, lines = make_settings({"rounds": 1, "data": "digits", "engine": engine}), []
    launch(settings, tmp_path / "run", report=lines.append)
    assert [line[:7] for line in lines] == ["Memory:", "Engine:"][: 1 + said]
    assert all(line.startswith("Engine: serial; fewer than") for line in lines[1:])


def test_a_resumed_run_may_take_what_it_has_taken_already(interrupted, tmp_path, monkeypatch):
    path = copy_of(interrupted, tmp_path / "run")
    own = sum(file.stat().st_size for file in (path / FOLDER).iterdir())
    free, usage = [0], namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1e9, 0, free[0]))
    monkeypatch.setattr(build, "make_plan", lambda *_: Plan(4, 0, own + 100, 0))
    with pytest.raises(UsageError, match=r"needs up to .* on the disk of .*: checkpoint_every=0"):
        resume(path)
    free[0] = 100
    resume(path)
    assert outcome(path) == outcome(interrupted / "whole")
    path, free[0] = copy_of(interrupted, tmp_path / "run"), 0
    resume(path, changes=["checkpoint_every=0", "checkpoint_minutes=0"])
    assert outcome(path) == outcome(interrupted / "whole")

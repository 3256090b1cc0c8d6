"""What a run says that it will need."""

from __future__ import annotations

import re
from collections import namedtuple
from itertools import product

import pytest

from tests.helpers.interrupted import copy_of, outcome, settings_of
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
from wima.storage import files
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
    assert many.memory - few.memory == OVERHEAD * (len(SIZES) - 4)  # visited in the second round


def test_snapshots_are_said_in_words():
    settings = make_settings({"rounds": 100, "snapshots": 25})
    plan, without = (plan_of(rounds=100, snapshots=every) for every in (25, 0))
    assert re.search(r"Disk: up to \d+ kB, of which snapshots \d+ kB\.", plan.in_words(settings))
    assert "snapshots" not in without.in_words(settings)
    assert plan.memory > without.memory and plan.disk > without.disk + plan.snapshots > without.disk


@pytest.mark.parametrize(("engine", "said"), [("auto", 1), ("serial", 0)])
def test_the_engine_is_reported_where_it_was_chosen(tmp_path, engine, said):
    settings, lines = make_settings({"rounds": 1, "data": "digits", "engine": engine}), []
    launch(settings, tmp_path / "run", report=lines.append)
    assert [line[:7] for line in lines] == ["Memory:", "Engine:"][: 1 + said]
    assert all(line.startswith("Engine: serial; fewer than") for line in lines[1:])


@pytest.mark.parametrize(
    ("window_store", "gigabytes", "every", "snapshots"),
    [
        *product(["memory", "files"], [None], [3, 9], [0]),
        *product(["files"], [0.0, 0.00005], [9, 1000], [0]),
        *product(["memory"], [None], [9], [1, 5]),
    ],
)
def test_a_run_takes_no_more_disk_than_planned(
    window_store, gigabytes, every, snapshots, tmp_path, monkeypatch
):
    path, plans, taken, sync = tmp_path / "run", [], [], files.sync

    def plan(*arguments):
        plans.append(make_plan(*arguments))
        return plans[0]

    def measured(file):
        sizes = (f.stat().st_size for f in path.rglob("*") if f.is_file())
        taken.append(sum(sizes))
        sync(file)

    monkeypatch.setattr(build, "make_plan", plan)
    monkeypatch.setattr(files, "sync", measured)
    settings = {"window_store": window_store, "client_memory_gb": gigabytes}
    settings |= {"algorithm": "scaffold", "checkpoint_every": every, "eval_every": 0}
    launch(settings_of(**settings, snapshots=snapshots), path)
    assert 0.2 * plans[0].disk < max(taken) <= plans[0].disk
    own = sum(file.stat().st_size for file in (path / "snapshots").glob("*"))
    assert 0.9 * plans[0].snapshots <= own <= plans[0].snapshots


def test_a_resumed_run_may_take_what_it_has_taken_already(interrupted, tmp_path, monkeypatch):
    path = copy_of(interrupted, tmp_path / "run")
    own = sum(file.stat().st_size for file in (path / FOLDER).iterdir())
    free, usage = [0], namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1e9, 0, free[0]))
    with pytest.raises(UsageError, match=r"needs up to .* MB .*: checkpoint_every=0") as refused:
        resume(path)
    advice = re.search(r"Settings that need less: (.*)\.", str(refused.value)).group(1)
    needed = float(re.search(r"up to ([\d.]+) MB", str(refused.value)).group(1)) * 1e6
    free[0] = needed + 1e5 - own
    resume(path)
    assert outcome(path) == outcome(interrupted / "whole")
    path, free[0] = copy_of(interrupted, tmp_path / "run"), 1e5
    resume(path, changes=advice.split())
    assert outcome(path) == outcome(interrupted / "whole")

"""`wima compare`: what makes a method, what it is called, and what it is compared with."""

from __future__ import annotations

import pytest

from tests.helpers.comparisons import ROUNDS, noisy, write_method
from tests.helpers.run_folders import write_run
from wima.core.errors import UsageError
from wima.core.measure import Measure
from wima.report.compare import compare


def names(made) -> list[str]:
    return [row.name for row in made.rows]


def plain_of(path, **options) -> list[str]:
    made = compare([path], Measure(), models=["plain"], **options)
    return [row.row for row in made.rows]


def test_plain_fedavg_is_first_and_the_baseline(tmp_path):
    for method in ("scaffold", "fedprox", "fedavg"):
        write_method(tmp_path, method, seeds=[0])
    made = compare([tmp_path], Measure())
    methods = ["fedavg", "fedprox", "scaffold"]
    assert names(made) == [f"{name}/{model}" for name in methods for model in ("plain", "wima5")]
    assert made.baseline.name == "fedavg/plain"


def test_a_baseline_is_a_method_or_one_of_its_models(tmp_path):
    for method in ("fedavg", "scaffold"):
        write_method(tmp_path, method, seeds=[0])

    def baseline(name: str, models=()) -> str:
        return compare([tmp_path], Measure(), name, models).baseline.name

    assert baseline("scaffold") == "scaffold/plain"
    assert baseline("scaffold/wima5") == "scaffold/wima5"
    assert baseline("scaffold", ["wima5"]) == "scaffold/wima5"


def test_only_the_models_asked_for_and_the_baseline_are_shown(tmp_path):
    for method in ("fedavg", "scaffold"):
        write_method(tmp_path, method, seeds=[0])
    made = compare([tmp_path], Measure(), "fedavg/plain", ["wima5"])
    assert names(made) == ["fedavg/plain", "fedavg/wima5", "scaffold/wima5"]


def test_hyper_parameters_are_in_names_where_they_tell_methods_apart(tmp_path):
    settings = {"rounds": ROUNDS, "seed": 0}
    for number, algorithm in enumerate(
        ["fedavg", "fedprox:mu=0.1", "fedprox:mu=1", "fedcm:alpha=0.5", "mine.py:Mine:mu=1"]
    ):
        curves = noisy("fedavg", number)
        write_run(tmp_path / f"{number}", {**settings, "algorithm": algorithm}, curves)
    write_run(tmp_path / "m", {**settings, "server": "momentum:lr=0.1"}, noisy("fedavg", 9))
    shown = ["fedavg", "fedavg, momentum:lr=0.1", "fedcm", "fedprox:mu=0.1", "fedprox:mu=1", "Mine"]
    assert sorted(plain_of(tmp_path)) == sorted(shown)


def test_without_another_algorithm_methods_are_named_by_what_varies(tmp_path):
    for rate in (0.2, 0.05, 0.1):
        write_method(tmp_path, "fedavg", seeds=[0, 1], lr=rate)
    assert plain_of(tmp_path) == ["lr=0.05", "lr=0.1", "lr=0.2"]


def test_a_setting_can_name_the_methods(tmp_path):
    write_method(tmp_path, "fedavg", seeds=[0], batch_size=5)
    write_method(tmp_path, "scaffold", seeds=[0], batch_size=20)
    assert plain_of(tmp_path, by=["batch_size"]) == ["batch_size=5", "batch_size=20"]
    made = compare([tmp_path], Measure(), by=["batch_size"])
    assert made.by == ["batch_size"]


def test_names_that_clash_say_more_and_the_fairest_fedavg_is_the_baseline(tmp_path):
    for rate in (0.05, 0.1):
        write_method(tmp_path, "fedavg", seeds=[0], lr=rate)
    for method in ("scaffold", "fedprox"):
        write_method(tmp_path, method, seeds=[0], lr=0.1)
    assert plain_of(tmp_path) == ["fedavg, lr=0.1", "fedavg, lr=0.05", "fedprox", "scaffold"]


def test_runs_that_differ_in_their_averages_are_one_method(tmp_path):
    for seed in (0, 1):
        plain = noisy("fedavg", seed)["plain"]
        for window in (2, 10):
            averagers = [{"name": "wima", "window": window}]
            settings = {"rounds": ROUNDS, "seed": seed, "averagers": averagers}
            curves = {"plain": plain, f"wima{window}": plain + window / 100}
            write_run(tmp_path / f"{window}-{seed}", settings, curves)
    made = compare([tmp_path], Measure())
    assert names(made) == ["fedavg/plain", "fedavg/wima2", "fedavg/wima10"]
    assert [len(row.members) for row in made.rows] == [2, 2, 2] and made.omitted == []


def test_a_run_that_repeats_another_is_named(tmp_path):
    for method in ("fedavg", "scaffold"):
        write_method(tmp_path / "a", method, seeds=[0])
    write_method(tmp_path / "b", "scaffold", seeds=[0], workers=1)
    made = compare([tmp_path], Measure())
    (left,) = made.omitted
    assert "scaffold-1-s0" in left.path and "the same settings and seed as" in left.reason


def test_runs_on_different_data_are_refused(tmp_path):
    write_method(tmp_path, "fedavg", seeds=[0])
    write_method(tmp_path, "scaffold", seeds=[0], data="femnist")
    with pytest.raises(UsageError, match="different data: digits, femnist"):
        compare([tmp_path], Measure())

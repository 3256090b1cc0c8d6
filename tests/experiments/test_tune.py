"""`wima tune`: trials are runs, the best one is that of the best mean, and nothing is run twice."""

from __future__ import annotations

from math import isclose, isfinite
from pathlib import Path
from statistics import mean, median

import pytest

from wima.core.errors import UsageError
from wima.core.signals import Interrupted
from wima.experiments.plan import methods
from wima.experiments.sheet import read_sheet, write_sheet
from wima.experiments.tune import (
    Objective,
    Range,
    Search,
    paper_axes,
    parse_space,
    results,
    run_trials,
)
from wima.runs.launch import ProgressDisplay, launch, resume
from wima.runs.run import read_run
from wima.runs.settings import load_settings

ROUNDS = 8
SMALL = [f"rounds={ROUNDS}", "clients=20", "clients_per_round=2", "engine=serial", "epochs=1"]
LOSS = Objective("wima-auto", "loss", -1)
LR = Range("lr", 0.001, 1.0, True)


def search_of(*ranges: Range, seeds=(0,)) -> Search:
    return Search("digits", SMALL, list(ranges or [LR]), list(seeds), "wima tune")


def rows(folder: Path) -> list[str]:
    return read_sheet(folder / "tune.sheet.json").rows


def late(path: Path, model: str, metric: str) -> float:
    """The mean over the last quarter of the rounds."""
    rounds, values = read_run(path).curve(model, metric)
    return mean(v for t, v in zip(rounds, values, strict=True) if t > ROUNDS - ROUNDS // 4)


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> Path:
    """Twelve trials, undisturbed."""
    folder = tmp_path_factory.mktemp("searched")
    run_trials(search_of(), folder, 12, LOSS)
    return folder


def runs_of(folder: Path) -> list[Path]:
    """The runs of the trials, in their order."""
    return [folder / cell.run for cell in read_sheet(folder / "tune.sheet.json").cells]


def test_the_best_of_a_grid_has_the_best_mean_over_seeds(cli, tmp_path):
    grid = ["--grid", "lr=0.1,0.01,1e30", "--seeds", "0,1", "--jobs", "1", "--out", "t"]
    written = []
    for metric, choose in (("accuracy", max), ("loss", min)):
        code, out, _ = cli("tune", "digits", *SMALL, *grid, "--metric", metric, "--model", "plain")
        assert code == 0
        means, cells = {}, read_sheet(tmp_path / "t" / "tune.sheet.json").cells
        for row in ("lr=0.1", "lr=0.01"):
            paths = [tmp_path / "t" / c.run for c in cells if c.row == row]
            means[row] = mean(late(path, "plain", metric) for path in paths)
            shown = f"{100 * means[row]:.2f}" if metric == "accuracy" else f"{means[row]:.4f}"
            assert shown in out
        best = choose(means, key=means.__getitem__)
        assert f"Best: {best}." in out and "diverged" in out
        made = load_settings(str(tmp_path / "t" / "best.toml"), [])
        assert made == load_settings("digits", [*SMALL, best])
        written.append([p.joinpath("status.json").stat().st_mtime_ns for p in set(paths)])
    assert written[0] == written[1]  # the runs are there already


def test_the_grid_is_the_papers_if_none_is_given(cli):
    tuned = methods()["fedprox"].tune["algorithm.mu"]
    settings = load_settings("digits", ["algorithm=fedprox"])
    assert paper_axes(settings) == [f"algorithm.mu={','.join(map(str, tuned))}"]
    code, _, errors = cli("tune", "digits")
    assert code == 2 and "does not tune FedAvg" in errors
    code, _, errors = cli("tune", "digits", "algorithm=scaffold", "server=momentum")
    assert code == 2 and "does not tune scaffold with server momentum" in errors


def test_a_search_prunes_by_the_median_of_the_trials_before(searched):
    """Optuna's rule: the best value so far is worse than the median of finished trials."""
    curves, pruned = [], 0
    for path in runs_of(searched):
        run = read_run(path)
        rounds, values = run.curve(LOSS.model, LOSS.metric)
        expected = None
        for t in rounds if len(curves) >= 5 else ():
            others = [curve[t - 1] for curve in curves]
            if ROUNDS // 4 <= t < ROUNDS and min(values[:t]) > median(others):
                expected = t
                break
        if expected is None:
            assert (run.status["state"], run.t) == ("done", ROUNDS)
            curves.append(values)
        else:
            assert (run.status["state"], run.t) == ("pruned", expected)
            assert f"after {expected} rounds" in run.status["reason"]
            pruned += 1
    assert pruned > 0


def test_a_pruned_run_can_be_resumed_to_the_bytes_of_an_undisturbed_one(searched, tmp_path):
    path = next(p for p in runs_of(searched) if read_run(p).status["state"] == "pruned")
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    launch(read_run(path).settings, whole)
    copy.mkdir()
    for file in path.rglob("*"):
        target = copy / file.relative_to(path)
        target.mkdir(exist_ok=True) if file.is_dir() else target.write_bytes(file.read_bytes())
    resume(copy)
    assert (copy / "records.jsonl").read_bytes() == (whole / "records.jsonl").read_bytes()


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(searched, tmp_path, monkeypatch):
    run_trials(search_of(), tmp_path, 3, LOSS)
    shown, seen = ProgressDisplay.update, []

    def stop(self, record):
        seen.append(record.t)
        if len(seen) == ROUNDS + 2:
            raise Interrupted("enough")
        shown(self, record)

    with monkeypatch.context() as patched:
        patched.setattr(ProgressDisplay, "update", stop)
        with pytest.raises(Interrupted, match="enough"):
            run_trials(search_of(), tmp_path, 12, LOSS)
    assert len(rows(tmp_path)) == 5 and seen[0] == 1
    run_trials(search_of(), tmp_path, 7, LOSS)
    assert rows(tmp_path) == rows(searched)[:7]
    for one, other in zip(runs_of(tmp_path), runs_of(searched), strict=False):
        assert (one / "records.jsonl").read_bytes() == (other / "records.jsonl").read_bytes()


def test_a_finished_search_is_read_and_not_repeated(searched, monkeypatch):
    monkeypatch.setattr("wima.experiments.tune.run_or_resume", None)
    sheet, _ = run_trials(search_of(), searched, 12, LOSS)
    for found, path in zip(results(sheet, searched, LOSS), runs_of(searched), strict=True):
        done = read_run(path).status["state"] == "done"
        assert done == isfinite(found.value)
        assert not done or isclose(found.value, late(path, LOSS.model, LOSS.metric))


def test_trials_keep_to_their_ranges_and_are_all_different(searched, tmp_path):
    values = [float(row.removeprefix("lr=")) for row in rows(searched)]
    assert all(LR.low <= value <= LR.high for value in values) and len(set(values)) == 12
    few = search_of(Range("epochs", 1, 2, False))
    run_trials(few, tmp_path, 9, LOSS)
    assert sorted(rows(tmp_path)) == ["epochs=1", "epochs=2"]


def test_a_trial_that_fails_does_not_stop_the_rest(cli, tmp_path):
    wanted = search_of(Range("clients_per_round", 1, 40, False))
    folder = tmp_path / "t"
    write_sheet(wanted.expand([{"clients_per_round": n} for n in (2, 30)])[0], folder)
    arguments = ["--space", "clients_per_round=1..40", "--trials", "2", "--out", "t"]
    code, out, errors = cli("tune", "digits", *SMALL, *arguments)
    assert code == 1 and "Trial 2 failed" in errors and "1 of 2 trials failed" in errors
    assert "Best: clients_per_round=2." in out and (folder / "best.toml").exists()


def test_without_optuna_the_error_says_how_to_get_it(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("wima.experiments.tune.find_spec", lambda name: None)
    code, _, errors = cli("tune", "digits", "--space", "lr=0.1..1")
    assert code == 2 and "pip install 'wima[tune]'" in errors and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--space", "lr=1..0.1"], "1 is not less than 0.1"),
        (["--space", "lr=0..1:log"], "must be positive"),
        (["--space", "lr=0.1,1"], "key=low..high"),
        (["--space", "lr=a..b"], "must be numbers"),
        (["--space", "lrr=0.1..1"], "did you mean 'lr'"),
        (["--space", "epochs=0.5..1.5"], "epochs"),
        (["--space", "lr=0.1..1", "--space", "lr=1..2"], "got lr, lr"),
        (["--space", "lr=0.1..1", "--grid", "epochs=1"], "not both"),
        (["--space", "lr=0.1..1", "--jobs", "2"], "--jobs is for grids"),
        (["--grid", "lr=0.1", "--trials", "2"], "--trials is for --space"),
        (["--grid", "lr=0.1", "--model", "wima5"], "did you mean 'wima50'"),
    ],
)
def test_wrong_usage_ends_with_2_and_writes_nothing(cli, tmp_path, arguments, message):
    code, _, errors = cli("tune", "digits", *arguments)
    assert code == 2 and message in errors and not list(tmp_path.iterdir())


def test_an_unknown_metric_is_named_after_the_first_evaluation(cli):
    code, _, errors = cli("tune", "digits", *SMALL, "--space", "lr=0.1..1", "--metric", "acuracy")
    assert code == 1 and "did you mean 'accuracy'" in errors


def test_trials_of_other_ranges_are_refused(tmp_path):
    write_sheet(search_of().expand([{"lr": 0.5}])[0], tmp_path)
    for other in (Range("lr", 0.001, 0.1, True), Range("clip", 0.1, 1.0, False)):
        with pytest.raises(UsageError, match="outside of these ranges"):
            run_trials(search_of(other), tmp_path, 2, LOSS)


def test_ranges_are_whole_if_both_ends_are():
    assert parse_space(["lr=1e-3..1:log", "epochs=1..3", "algorithm.mu=.1...5"]) == [
        Range("lr", 0.001, 1, True),
        Range("epochs", 1, 3, False),
        Range("algorithm.mu", 0.1, 0.5, False),
    ]
    assert [r.is_whole for r in parse_space(["a=1..3", "a2=1..3.0"])] == [True, False]

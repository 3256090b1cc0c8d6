"""`wima advise`: it finds the window that is best, and says how sure that is."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.paths import ROOT
from wima.core.errors import UsageError
from wima.core.statistics import student_margin
from wima.model_files.advise import (
    advise,
    best_of,
    candidates,
    compare,
    default_windows,
    end_points,
    verdict,
)
from wima.model_files.mean import Decay, Window

EXAMPLE = ROOT / "examples" / "advise_digits"


def walk(folder: Path, models: np.ndarray) -> list[Path]:
    files = [folder / f"step_{n}.npz" for n in range(len(models))]
    for file, w in zip(files, models, strict=True):
        np.savez(file, w=w)
    return files


def loss(file: Path) -> float:
    """The distance from the optimum, 0."""
    return float(np.linalg.norm(np.load(file)["w"]))


def noise(count: int, drift: float = 0.0) -> np.ndarray:
    """Models around the optimum, as SGD with a constant rate leaves them, or on their way to it."""
    random = np.random.default_rng(0)
    way = drift * np.arange(count)[::-1, None]
    return random.normal(size=(count, 100)) + way


def test_windows_are_1_2_5_10_and_so_on_and_all_files():
    assert default_windows(60) == [1, 2, 5, 10, 20, 50, 60]
    assert default_windows(100) == [1, 2, 5, 10, 20, 50, 100]
    assert default_windows(1) == [1]
    assert candidates(3, None, None) == [Window(1), Window(2), Window(3), Decay(0.5)]
    assert candidates(9, "4,1", "") == [Window(1), Window(4)]
    with pytest.raises(UsageError, match=r"--windows must be comma-separated numbers, got '3;4'"):
        candidates(9, "3;4", "")


def test_end_points_are_the_last_files_and_at_most_the_later_half():
    assert end_points(100, 3) == [100, 99, 98]
    assert end_points(100, 3, apart=10) == [100, 90, 80]
    assert end_points(6, 5) == [6, 5, 4, 3]


def test_on_pure_noise_the_longest_window_is_best_and_its_metrics_are_those_of_the_means(tmp_path):
    models = noise(40)
    rules = [Window(1), Window(5), Window(30), Decay(0.5)]
    rows = advise(walk(tmp_path, models), loss, rules, [40, 39, 38, 37], minimize=True)
    assert best_of(rows).rule == Window(30)
    for row, window in zip(rows, (1, 5, 30), strict=False):
        means = [models[end - window : end].mean(axis=0) for end in (40, 39, 38, 37)]
        np.testing.assert_allclose(row.values, np.linalg.norm(means, axis=1))
    assert rows[2].rule.option == "--window 30"
    assert "W = 30 is best" in verdict(rows)[0]
    assert verdict(rows)[1] == "Averaging helps here: wima average --window 30."


def test_when_models_still_move_it_says_that_averaging_does_not_help(tmp_path):
    files = walk(tmp_path, noise(20, drift=50.0))
    rows = advise(files, loss, [Window(1), Window(2), Window(9), Decay(0.5)], [20, 19, 18], True)
    assert best_of(rows) is rows[0]
    assert "Averaging does not help here" in verdict(rows)[0]


def test_a_difference_within_the_noise_is_not_called_a_gain():
    values = {Window(1): [0.90, 0.92, 0.91], Window(2): [0.95, 0.90, 0.91]}
    rows = compare(values, minimize=False)
    assert best_of(rows).rule == Window(2)
    assert "no evidence that averaging helps" in verdict(rows)[1]
    one = compare({rule: own[:1] for rule, own in values.items()}, minimize=False)
    assert np.isnan(one[1].margin) and "the uncertainty is unknown" in verdict(one)[1]


def test_equal_gains_at_few_end_points_are_not_called_a_gain():
    rows = compare({Window(1): [0.70, 0.51], Window(2): [0.71, 0.52]}, minimize=False)
    summary, why = verdict(rows)
    assert np.isnan(rows[1].margin) and "±" not in summary
    assert "All 2 gains are equal" in why and "--ends 4" in why
    both = compare(
        {Window(n): [0.7 + (n > 1) * x for x in (0.11, 0.12, 0.13)] for n in (1, 2, 3)}, False
    )
    assert "Indistinguishable" in verdict(both)[-1] and "W = 3" in verdict(both)[-1]


def test_the_interval_is_students_and_grows_with_the_number_of_candidates():
    gains = np.array([1.0, 2.0, 4.0])
    t_two_sided_5_percent_2_degrees = 4.302653
    expected = t_two_sided_5_percent_2_degrees * gains.std(ddof=1) / np.sqrt(3)
    assert student_margin(gains) == pytest.approx(expected, rel=1e-6)
    values = {Window(1): [0.0, 0.0, 0.0], Window(2): list(gains)}
    many = {**values, **{Window(n): [0.0, 1.0, 0.0] for n in range(3, 9)}}
    assert compare(values, False)[1].margin == pytest.approx(expected, rel=1e-6)
    assert compare(many, False)[1].margin > 2 * expected


def test_intervals_hold_where_nothing_is_gained():
    """Of 400 sweeps in which no candidate is better, few call one a gain."""
    random, called = np.random.default_rng(0), 0
    for _ in range(400):
        values = {Window(n): list(random.normal(size=5)) for n in range(1, 9)}
        called += "Averaging helps" in " ".join(verdict(compare(values, minimize=False)))
    assert called <= 0.05 * 400 + 3 * np.sqrt(0.05 * 0.95 * 400)


def test_the_candidates_that_equal_the_best_are_named():
    values = {
        Window(1): [0.5, 0.6, 0.55, 0.52],
        Window(5): [0.90, 0.92, 0.91, 0.90],
        Window(9): [0.91, 0.91, 0.92, 0.90],
        Decay(0.5): [0.7, 0.72, 0.71, 0.7],
    }
    told = verdict(compare(values, minimize=False))
    assert told[-1] == "Indistinguishable from the best with these end points: W = 5."


# On the command line.


def evaluator(folder: Path) -> str:
    script = folder / "evaluate.py"
    script.write_text(
        "import json, sys, numpy\nw = numpy.load(sys.argv[1])['w']\n"
        "print(json.dumps({'distance': float(numpy.linalg.norm(w))}))\n"
    )
    return f"{sys.executable} {script} {{}}"


def test_the_command_prints_a_table_and_draws_a_picture(cli, tmp_path):
    walk(tmp_path, noise(12))
    arguments = ["--minimize", "--ends", "2", "--windows", "4,12", "--decays", "0.8"]
    code, out, err = cli("advise", "step_*.npz", "--eval", evaluator(tmp_path), *arguments)
    assert (code, err) == (0, "")
    assert "12 checkpoints, 4 candidates, 2 end points." in out
    first = f"Read distance={np.linalg.norm(noise(12)[-1]):.5g} for step_11.npz"
    assert out.count("Read ") == 1 and first in out and "distance, mean over 2" in out
    assert [name for name in ("plain", "W = 4", "W = 12", "EMA 0.8") if name not in out] == []
    assert "W = 12 is best" in out and "Picture: advise.png" in out
    assert (tmp_path / "advise.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_its_own_is_replaced_and_no_other(cli, tmp_path):
    walk(tmp_path, noise(3))
    command = ["advise", "step_*.npz", "--eval", evaluator(tmp_path), "--windows", "2"]
    assert cli(*command, "--ends", "1")[0] == 0
    first = (tmp_path / "advise.png").read_bytes()
    assert cli(*command, "--ends", "2")[0] == 0
    assert (tmp_path / "advise.png").read_bytes() != first
    Image.new("1", (2, 2)).save(tmp_path / "advise.png")
    theirs = (tmp_path / "advise.png").read_bytes()
    code, _, err = cli(*command)
    assert code == 2 and "advise.png already exists" in err
    assert (tmp_path / "advise.png").read_bytes() == theirs
    assert cli(*command, "--force")[0] == 0


def test_a_command_that_fails_is_told_and_leaves_nothing(cli, tmp_path):
    files = walk(tmp_path, noise(3))
    code, out, err = cli("advise", "step_*.npz", "--eval", f"{sys.executable} -c 1/0 {{}}")
    assert code == 1 and "ZeroDivisionError" in err and "wima/saved" not in out + err
    assert sorted(tmp_path.iterdir()) == files
    code, _, err = cli("advise", "step_0.npz", "--eval", "none {}")
    assert code == 2 and "at least two checkpoints" in err


def test_the_example_on_digits_runs(cli, monkeypatch):
    train = str(EXAMPLE / "train.py")
    monkeypatch.setattr(sys, "argv", [train, "digits", "--checkpoints", "8", "--every", "5"])
    runpy.run_path(train, run_name="__main__")
    monkeypatch.setattr(sys, "path", list(sys.path))  # the script's folder is added
    evaluate = str(EXAMPLE / "evaluate.py")
    options = ["--metric", "accuracy", "--windows", "4", "--decays", "", "--ends", "2"]
    code, out, err = cli("advise", "digits/step_*.safetensors", "--eval", evaluate, *options)
    assert (code, err) == (0, "")
    assert "accuracy, mean over 2 end points" in out and "W = 4" in out

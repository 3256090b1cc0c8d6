"""The scripts behind notes in docs/results.md."""

from __future__ import annotations

import re
import runpy

import numpy as np
import pytest
import torch

import wima
from tests.helpers.fedjax_files import femnist_folder, writer
from tests.helpers.paths import ROOT
from tests.helpers.reports import make_sheet
from tests.helpers.run_folders import write_run
from wima.data.manage import import_data
from wima.data.transform import draw
from wima.experiments.sheet import Cell, write_sheet
from wima.runs.launch import launch
from wima.runs.settings import load_settings

SCRIPTS = ROOT / "examples" / "results"
EMNIST = [402_953, 220_304, 190_998]  # digits, capitals, small letters


def lengths(printed: str, name: str) -> list[list[float]]:
    """The printed rows of that name."""
    return [[float(x) for x in row.split()] for row in re.findall(rf"{name} +([\d. ]+)", printed)]


def test_a_control_variate_fits_while_models_hardly_move(capsys):
    main = runpy.run_path(str(SCRIPTS / "control_variates.py"))["main"]
    main("digits", "lr=1e-6", "batch_size=full", "rounds=4", "eval_every=2")
    printed = capsys.readouterr().out
    gradients, rests = lengths(printed, r"\|g\|"), lengths(printed, r"\|g - c_i\|")
    steps = load_settings("digits", []).epochs
    assert re.findall(r"round +(\d+)", printed) == ["2", "4"]
    assert [len(row) for row in gradients + rests] == [steps] * 4
    assert all(x > 1 for row in gradients for x in row)
    assert all(x < 0.01 for row in rests for x in row)


def test_accuracies_of_groups_add_up_to_the_recorded_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    writers = {name: writer(40, seed) for seed, name in enumerate(("ann", "bob"))}
    import_data("femnist", femnist_folder(tmp_path / "files", writers))
    options = ["model=mlp", "rounds=20", "clients_per_round=2", "engine=serial", "window=2"]
    launch(load_settings("femnist", options), tmp_path / "run")
    capsys.readouterr()
    runpy.run_path(str(SCRIPTS / "femnist_groups.py"))["main"](tmp_path / "run")
    head, *groups, everything, weighted = capsys.readouterr().out.splitlines()
    recorded = wima.read_run(tmp_path / "run").records[-1].metrics
    assert head.split() == ["images", *recorded]
    counts, *columns = zip(*(map(float, row.split()[-3:]) for row in groups), strict=True)
    for column, mean, shares, metrics in zip(
        columns, everything.split()[2:], weighted.split()[4:], recorded.values(), strict=True
    ):
        assert len(set(column)) == 3  # groups differ, so their weights matter
        assert float(mean) == pytest.approx(100 * metrics["accuracy"], abs=0.006)
        assert float(mean) == pytest.approx(np.average(column, weights=counts), abs=0.011)
        assert float(shares) == pytest.approx(np.average(column, weights=EMNIST), abs=0.011)


def test_silos_that_have_their_part_get_no_further_class():
    dirichlet = runpy.run_path(str(SCRIPTS / "niid_bench.py"))["dirichlet"]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 50))
    owner = dirichlet(labels, 10, 0.5, 42)
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (labels, owner), 1)
    before = counts.cumsum(0) - counts
    assert (counts.sum(1) == 50).all() and counts.sum(0).min() >= 10
    assert (before >= 50).any() and not counts[before >= 50].any()
    assert (owner == dirichlet(labels, 10, 0.5, 42)).all()
    assert (owner != dirichlet(labels, 10, 0.5, 43)).any()


def test_silos_train_on_crops_of_reflected_images():
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8)
    transform = runpy.run_path(str(SCRIPTS / "niid_bench.py"))["Reflected"]()
    made = transform.train(images, (0, 1, 2, 3)).numpy()
    for image, crop, top, left, flip in zip(images, made, *draw(40, 9, (0, 1, 2, 3)), strict=True):
        padded = np.pad(image.numpy(), ((0, 0), (4, 4), (4, 4)), mode="reflect")
        expected = padded[:, top : top + 32, left : left + 32].astype("float32") / 255
        assert np.array_equal(crop, expected[..., ::-1] if flip else expected)


def test_the_settings_of_niid_bench_run(tmp_path, monkeypatch, cifar10_files):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)
    import_data("cifar10", cifar10_files)
    short = ["rounds=1", "steps=2", "engine=serial", "window=2"]
    settings = load_settings("examples/results/niid_bench.toml", short)
    launch(settings, tmp_path / "run")
    run = wima.read_run(tmp_path / "run")
    assert [len(record.cohort) for record in run.records] == [10]
    assert sum(p.numel() for p in run.model("plain").parameters()) == 62_006


def test_rules_that_choose_a_window_are_behind_the_best_one(tmp_path, capsys):
    """The naive computation from the same curves, and the committed table."""
    models = {"plain": "plain", "auto": "wima-auto", "W = 100": "wima20", "W = 5": "wima1"}
    rng, rounds, levels, cells = np.random.default_rng(0), 90, [], []
    for seed in range(3):
        curves = {name: rng.uniform(0.4, 0.6, rounds) for name in models.values()}
        windows = {"wima-auto": [max(1, t // 4) for t in range(1, rounds + 1)]}
        write_run(tmp_path / f"{seed}", {"rounds": rounds, "seed": seed}, curves, "done", windows)
        levels.append({name: values[60:].mean() for name, values in curves.items()})
        cells.append(Cell("FedAvg", "digits", seed, f"{seed}", models))
    write_run(tmp_path / "cut", {"rounds": rounds, "seed": 3}, curves, "interrupted")
    cells.append(Cell("FedAvg", "digits", 3, "cut", models))
    names = {"rows": ["FedAvg"], "columns": ["digits"], "headings": list(models)}
    sheet = make_sheet(cells, name="auto", kind="regret", shown="", scale="", **names)
    main = runpy.run_path(str(SCRIPTS / "choosing_w.py"))["main"]
    main(write_sheet(sheet, tmp_path), tmp_path)
    header, _, line, mean, worst = (
        line.removeprefix("| ").removesuffix(" |").split(" | ")
        for line in capsys.readouterr().out.splitlines()
    )
    fixed = ("plain", "wima20", "wima1")
    behind = [one["wima-auto"] - max(map(one.__getitem__, fixed)) for one in levels]
    column = header.index("auto − best")
    for cells, expected in ((line, np.mean(behind)), (mean, np.mean(behind)), (worst, min(behind))):
        assert cells[column] == f"{100 * expected:+.2f}".replace("-", "−")
    assert (tmp_path / "digits.png").is_file()
    auto = ROOT / "docs" / "results" / "auto" / "auto.sheet.json"
    main(auto)
    page = (ROOT / "docs" / "choosing-w.md").read_text(encoding="utf-8")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 30 and [line for line in lines if line not in page] == []

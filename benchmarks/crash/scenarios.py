"""Programs that write files, and how each goes on after a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from tests.helpers.interrupted import FILES, killed_after, outcome, settings_of
from wima.experiments.sheet import Cell, Sheet, write_sheet
from wima.report.measure import Measure
from wima.report.write import write_report
from wima.runs.folder import is_intact, read_run
from wima.runs.launch import launch, resume
from wima.runs.settings import Settings

SETTINGS = settings_of(algorithm="scaffold", rounds=12, checkpoint_every=4, **FILES)


class Scenario(NamedTuple):
    """All happens in a folder, which is empty at first."""

    prepare: Callable[[Path], object]
    work: Callable[[Path], object]  # what is interrupted
    finish: Callable[[Path], object]  # what is done after a crash
    outcome: Callable[[Path], object]  # what must be the same as without one


def finish(path: Path, settings: Settings) -> None:
    """Bring a run to its end, as its user would."""
    if not path.exists():
        launch(settings, path)
        return
    run = read_run(path)
    if run.status["state"] != "done" or not is_intact(run):
        resume(path)


def _sweep(folder: Path) -> None:
    seeds = {seed: SETTINGS.model_copy(update={"seed": seed}) for seed in (0, 1)}
    cells = [Cell("row", "column", seed, f"s{seed}", "plain") for seed in seeds]
    write_sheet(Sheet("both", "Two seeds", ["row"], ["column"], cells), folder)
    for seed, settings in seeds.items():
        finish(folder / f"s{seed}", settings)


def _report(folder: Path) -> None:
    if not (folder / "report").exists():
        write_report([folder / "run"], folder / "report", Measure("accuracy", None, None))


def _averages(folder: Path) -> None:
    """A Flower server that keeps its window in files."""
    from flwr.serverapp.strategy import FedAvgM

    from tests.helpers.flower_toys import drawn, feed
    from wima import EMA, WIMA
    from wima.flower import averaged

    strategy = averaged(FedAvgM(), [WIMA(3), EMA(0.9)], folder=folder / "state")
    averaging = feed(strategy, drawn(6)[strategy.averaging.seen :])
    models = {name: averaging.model(name) for name in ("plain", "wima3", "ema0.9")}
    averaging.close()
    lines = [f"{name} {key} {a.numpy().tobytes().hex()}" for name, m in models.items() for key, a in m.items()]
    (folder / "averages.txt").write_text("\n".join(lines))


def _files(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(folder.rglob("*")) if f.suffix in (".csv", ".json")}


SCENARIOS = {
    "run": Scenario(
        lambda folder: None,
        lambda folder: launch(SETTINGS, folder / "run"),
        lambda folder: finish(folder / "run", SETTINGS),
        lambda folder: outcome(folder / "run"),
    ),
    "resume": Scenario(
        lambda folder: killed_after(7, SETTINGS, folder / "run"),
        lambda folder: resume(folder / "run"),
        lambda folder: finish(folder / "run", SETTINGS),
        lambda folder: outcome(folder / "run"),
    ),
    "sweep": Scenario(
        lambda folder: None, _sweep, _sweep,
        lambda folder: [outcome(folder / "s0"), outcome(folder / "s1"), _files(folder)["both.sheet.json"]],
    ),
    "report": Scenario(
        lambda folder: launch(SETTINGS, folder / "run"), _report, _report,
        lambda folder: (sorted(p.name for p in (folder / "report").rglob("*")), _files(folder / "report")),
    ),
    "averages": Scenario(
        lambda folder: None, _averages, _averages,
        lambda folder: (folder / "averages.txt").read_text(),
    ),
}

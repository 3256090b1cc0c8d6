"""Programs that write files, and how each goes on after a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.helpers.interrupted import FILES, killed_after, outcome, settings_of
from wima.core.measure import Measure
from wima.experiments.sheet import Cell, Sheet, write_sheet
from wima.report.write import write_report
from wima.runs.launch import launch, resume
from wima.runs.run import is_intact, read_run
from wima.runs.settings import Settings

SNAPSHOTS = settings_of(rounds=12, checkpoint_every=4, snapshots=3)
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
    cells = [Cell("row", "column", seed, f"s{seed}", {"plain": "plain"}) for seed in seeds]
    texts = ("both", "Two seeds", "", "table", "full", "", "wima sweep ...")
    write_sheet(Sheet(*texts, 10, ["row"], ["column"], ["plain"], cells), folder)
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
    models = {name: averaging.model(name) for name in ("plain", *averaging.names)}
    averaging.close()
    parts = [a.numpy().tobytes() for model in models.values() for a in model.values()]
    (folder / "averages").write_bytes(b"".join(parts))


def _numbers(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*.csv"))}


def _nothing(folder: Path) -> None: ...


SCENARIOS = {
    "run": Scenario(
        prepare=_nothing,
        work=lambda folder: launch(SETTINGS, folder / "run"),
        finish=lambda folder: finish(folder / "run", SETTINGS),
        outcome=lambda folder: outcome(folder / "run"),
    ),
    "resume": Scenario(
        prepare=lambda folder: killed_after(7, SETTINGS, folder / "run"),
        work=lambda folder: resume(folder / "run"),
        finish=lambda folder: finish(folder / "run", SETTINGS),
        outcome=lambda folder: outcome(folder / "run"),
    ),
    "snapshots": Scenario(
        prepare=lambda folder: killed_after(7, SNAPSHOTS, folder / "run"),
        work=lambda folder: resume(folder / "run"),
        finish=lambda folder: finish(folder / "run", SNAPSHOTS),
        outcome=lambda folder: outcome(folder / "run"),
    ),
    "sweep": Scenario(
        prepare=_nothing,
        work=_sweep,
        finish=_sweep,
        outcome=lambda folder: [
            outcome(folder / "s0"),
            outcome(folder / "s1"),
            (folder / "both.sheet.json").read_bytes(),
        ],
    ),
    "report": Scenario(
        prepare=lambda folder: launch(SETTINGS, folder / "run"),
        work=_report,
        finish=_report,
        outcome=lambda folder: (
            sorted(file.name for file in (folder / "report").rglob("*")),
            _numbers(folder / "report"),
        ),
    ),
    "averages": Scenario(
        prepare=_nothing,
        work=_averages,
        finish=_averages,
        outcome=lambda folder: (folder / "averages").read_bytes(),
    ),
}

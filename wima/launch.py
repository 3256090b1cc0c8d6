"""From settings to a finished run folder, with progress on the way."""

from __future__ import annotations

import traceback
from pathlib import Path

from wima.build import build
from wima.config import Settings
from wima.console import Progress
from wima.errors import RunError
from wima.runs import Run, RunFolder, check_free, read_run
from wima.simulation import Simulation


class Interrupted(Exception):  # noqa: N818  (it is no error)
    """The user stopped the run; the message says how far it came."""


def default_path(settings: Settings) -> Path:
    """Where a run goes if nobody says where."""
    name = f"{Path(settings.data.name).stem}-{settings.algorithm.name}-{settings.run_id}"
    return Path("runs") / name


def launch(settings: Settings, path: Path) -> Run:
    """Run the settings and record the run at `path`; nothing is written before all is checked."""
    check_free(path)
    try:
        with build(settings) as simulation:
            folder = RunFolder(path, settings, simulation.facts())
            _record(simulation, folder)
    except KeyboardInterrupt:
        raise Interrupted("Interrupted before the first round; nothing was written.") from None
    return read_run(path)


def _record(simulation: Simulation, folder: RunFolder) -> None:
    """Play all rounds; however that ends, the folder says so."""
    try:
        _play(simulation, folder)
    except KeyboardInterrupt:
        folder.close("interrupted")
        raise Interrupted(
            f"Interrupted after {folder.done} of {simulation.rounds} rounds; "
            f"the records up to there are in {folder.path}."
        ) from None
    except Exception as error:
        folder.close("failed", reason=str(error))
        details = folder.path / "error.txt"
        details.write_text(traceback.format_exc(), encoding="utf-8")
        raise RunError(
            f"The run failed after {folder.done} of {simulation.rounds} rounds: {error}\n"
            f"Details are in {details}."
        ) from error


def _play(simulation: Simulation, folder: RunFolder) -> None:
    with Progress(simulation.rounds) as progress:
        for record in simulation:
            folder.append(record)
            progress.update(record)
    folder.save_models(simulation.vectors(), simulation.setup.task.layout)
    folder.close("done")

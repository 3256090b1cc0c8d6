"""The ranks of a run with engine `distributed`: only rank 0 has a folder and a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wima.core.errors import check
from wima.runs.build import build
from wima.runs.folder import Run, read_run
from wima.runs.settings import CHANGEABLE, Settings, change_settings
from wima.simulation.engines import EXACT
from wima.simulation.simulate import Simulation


def helps(settings: Settings) -> bool:
    """Whether this process works for rank 0; checks that all ranks have the same settings."""
    if settings.engine != "distributed":
        return False
    from wima.simulation.engines.ranks import join  # imported here: only distributed runs need it

    group = join()
    group.agree({**settings.in_results(), "device": settings.device})
    return group.rank > 0


def help_rank_0(settings: Settings) -> None:
    """Work for rank 0 until its run ends; nothing is written or printed."""
    with build(settings.model_copy(update={"averagers": []})) as simulation:
        for _ in simulation:
            pass


def check_rank_0(simulation: Simulation) -> None:
    """Refuse to write a run that belongs to another process."""
    check(
        not simulation.helps,
        "Only rank 0 of a distributed run writes a folder; start the ranks with `wima run` or "
        "`wima resume`, which handle this, one run at a time.",
    )


def helps_to_resume(path: Path, changes: Sequence[str]) -> bool:
    """Help rank 0 until the run that it resumes ends; returns False if this process is rank 0."""
    settings = settings_to_resume(read_run(path), changes)
    if not helps(settings):
        return False
    help_rank_0(settings)
    return True


def settings_to_resume(run: Run, changes: Sequence[str]) -> Settings:
    """The changed settings of a run; a new engine must give the same bytes."""
    wanted = change_settings(run.settings, changes, CHANGEABLE)
    before, after = run.settings.engine, wanted.engine
    check(
        arithmetic(before) == arithmetic(after),
        f"engine cannot be changed from {before} to {after} in an existing run: only "
        f"{', '.join(EXACT)} give the same bytes.",
    )
    return wanted


def arithmetic(engine: str) -> str:
    """A key that is the same for engines that give the same bytes."""
    return "exact" if engine in EXACT else engine

"""Run a simulation to its end, optionally with a run folder, or read a run folder."""

from __future__ import annotations

from functools import partial
from math import nan
from os import PathLike
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from wima.algorithms.base import Algorithm
from wima.core.errors import UsageError, check
from wima.report.summary import draw_curves, title, title_of
from wima.results.result import Models, Result
from wima.runs import launch
from wima.runs.build import build_task
from wima.runs.folder import MALFORMED, Run, read_run as read_folder, seconds_of, state_of
from wima.runs.launch import Progress, Silent
from wima.runs.objects import choice_of, settings_of
from wima.runs.own_code import OWN
from wima.runs.record import from_line
from wima.runs.windows import UNREADABLE, vector_of
from wima.simulation.simulate import Simulation, check_parts, shown, simulate
from wima.simulation.task import Task
from wima.storage.reading import check_file

CHECKED = ("algorithm", "server_opt", "averagers", "schedule", "privacy")
PARTS = (*CHECKED, "cohorts", "faults", "storage", "make")  # arguments that are objects


def run(
    task: Task,
    algorithm: Algorithm | None = None,
    *,
    progress: bool = False,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    **options: Any,
) -> Result:
    """Run `simulate` to the end and return all records and the final models.

    progress: show a progress bar.
    out: write a run folder, as `wima run` does.
    resume: resume the run in that folder, if there is one; if it is complete, read it.
    options: those of `simulate`.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> result = wima.run(task, averagers=wima.WIMA(5), rounds=10, clients_per_round=1)
        >>> result.models
        ['plain', 'wima5']
    """
    follow = Progress if progress else Silent
    if out is not None:
        return _in_folder(Path(out), resume, follow, task, {"algorithm": algorithm, **options})
    check(not resume, "resume=True needs out=, the run folder.")
    records = []
    with simulate(task, algorithm, **options) as simulation, follow(simulation.rounds) as display:
        for record in simulation:
            records.append(record)
            display.update(record)
    models = Models(simulation.vectors(), task)
    return Result(records, lambda: models, _title(simulation))


run.__signature__ = shown(run, simulate)  # type: ignore[attr-defined]


def _title(simulation: Simulation) -> str:
    setup, per_round = simulation.setup, simulation.options.clients_per_round
    return title(choice_of(setup.algorithm).name, OWN, per_round, setup.task.data.num_clients)


def _in_folder(
    path: Path, resume: bool, follow: launch.Follow, task: Task, arguments: dict[str, Any]
) -> Result:
    given = {name: value for name, value in arguments.items() if value is not None}
    parts = {name: given[name] for name in PARTS if name in given}
    check_parts(task, **{name: parts[name] for name in CHECKED if name in parts})
    settings = settings_of(task, given)
    if resume and path.exists():
        found = read_folder(path)
        same = found.settings.in_results() == settings.in_results()
        check(same, f"The run in {path} has different settings; choose another folder.")
        if state_of(found) != "done":
            launch.resume(path, follow, task=task, **parts)
    else:
        launch.launch(settings, path, follow, report=lambda line: None, task=task, **parts)
    result = read_run(path, task)
    if result.metrics:
        draw_curves(read_folder(path), path / "curves.png", result.usual_metric)
    return result


def read_run(path: str | PathLike[str], task: Task | None = None) -> Result:
    """The result of a run, complete or not, from its folder.

    task: needed to load models of runs that were started with Python objects; for other runs, it is
    built from their settings when needed.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> first = wima.run(task, rounds=2, clients_per_round=1, engine="serial", out="first-run")
        >>> wima.read_run("first-run", task).vectors["plain"].equal(first.vectors["plain"])
        True
    """
    found = read_folder(Path(path))
    seconds = seconds_of(found.path)
    try:
        records = [from_line(line, seconds.get(line["t"], nan)) for line in found.records]
    except MALFORMED as error:
        raise UsageError(f"The records in {path} are damaged: {error!r:.200}.") from None
    return Result(records, partial(_models, found, task), title_of(found), found.path)


def _models(found: Run, task: Task | None) -> Models:
    """The final models of a run folder."""
    folder, state = found.path / "models", state_of(found)
    check(folder.is_dir(), f"The run in {found.path} is {state}; it has no final models yet.")
    task = task or build_task(found.settings)
    vectors = {}
    for name in ["plain", *(model for model in found.models if model != "plain")]:
        file = folder / f"{name}.safetensors"
        check_file(file)
        try:
            vectors[name] = vector_of(load_file(file), task.layout)
        except UNREADABLE as error:
            raise UsageError(f"{file} does not match the task: {error!s:.200}") from None
    return Models(vectors, task)

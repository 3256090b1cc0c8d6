"""`wima.run`: a simulation of Python objects to its end, optionally recorded in a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Never

from wima import algorithms
from wima.algorithms.base import Algorithm
from wima.algorithms.server_opt import ServerOpt
from wima.averaging import Averager, named
from wima.core.errors import check
from wima.core.text import echo
from wima.runs.build import ARGUMENTS
from wima.runs.checkpoint import known_of, refuse
from wima.runs.identity import ADDRESS, VERSIONS, differences, identity_of
from wima.runs.launch import Display, MakeDisplay, ProgressDisplay, launch, resume as resume_run
from wima.runs.own_code import OWN, kinds
from wima.runs.run import Models, Run, read_run, state_of, title
from wima.runs.settings import Choice, Settings, make_settings
from wima.runs.summary import draw_curves
from wima.simulation.engines.auto import MakeEngine
from wima.simulation.measures.base import Measure
from wima.simulation.measures.finetune import FineTune
from wima.simulation.options import Cohorts, Faults, LocalSGD, RunOptions, Schedule, Weighting
from wima.simulation.privacy import Gaussian
from wima.simulation.simulate import check_names, check_parts, options_of, simulate
from wima.simulation.task import Task
from wima.storage.segments import Storage


def run(
    task: Task,
    algorithm: Algorithm | None = None,
    *,
    progress: bool = False,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    rounds: int = 500,
    clients_per_round: int = 10,
    lr: float = 0.1,
    batch_size: int | Literal["full"] = 10,
    epochs: int = 1,
    steps: int | None = None,
    last_batch: Literal["fill", "short"] = "fill",
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    clip: float | None = None,
    seed: int = 0,
    averagers: Averager | Sequence[Averager] | Mapping[str, Averager] = (),
    server_opt: ServerOpt | None = None,
    stack_server: bool = False,
    schedule: Schedule | None = None,
    weighting: Weighting = "examples",
    cohorts: Cohorts | str | None = None,
    faults: Faults | None = None,
    privacy: Gaussian | None = None,
    eval_every: int = 1,
    eval_last: int = 100,
    client_eval_every: int = 0,
    client_sample: int = 1000,
    calibration: bool = False,
    finetune: FineTune | None = None,
    measures: Sequence[Measure] = (),
    diverged: float = 1e4,
    engine: str = "auto",
    workers: int | None = None,
    storage: Storage | None = None,
    make: MakeEngine | None = None,
    **wrong: Never,
) -> Run:
    """Run `simulate` to the end and return all records and the final models.

    progress: show a progress bar.
    out: write a run folder, as `wima run` does.
    resume: resume the run in that folder, if there is one; if it is complete, read it.
    All other options are those of `simulate`.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> result = wima.run(task, averagers=wima.WIMA(5), rounds=10, clients_per_round=1)
        >>> result.models
        ['plain', 'wima5']
    """
    arguments = {**locals(), **wrong}
    check_names(arguments, wrong)
    options = {
        n: v for n, v in arguments.items() if n not in ("progress", "out", "resume", "wrong")
    }
    display = ProgressDisplay if progress else Display
    if out is not None:
        return _in_folder(Path(out), resume, display, options)
    check(not resume, "resume=True needs out=, the run folder.")
    records = []
    with simulate(**options) as simulation, display(simulation.rounds, 0) as shown:
        for record in simulation:
            records.append(record)
            shown.update(record)
    models = Models(simulation.vectors(), task)
    name = choice_of(simulation.setup.algorithm).name
    header = title(name, OWN, clients_per_round, task.data.num_clients)
    return Run(header, lambda: models, records=records)


OBJECTS = [ARGUMENTS.get(setting, setting) for setting in kinds() if setting != "model"]
OBJECTS += ["cohorts", "faults", "storage", "make"]


def _in_folder(path: Path, resume: bool, display: MakeDisplay, options: dict[str, Any]) -> Run:
    check_parts(options)
    task, settings = options["task"], settings_of(options)
    parts = {name: options[name] for name in OBJECTS if options[name] is not None}
    if resume and path.exists():
        before = read_run(path)
        differ = differences(before.settings.in_results(), settings.in_results())
        refuse(before, differ, "has another result")
        if state_of(before) != "done":
            names = settings.own_names()
            resume_run(path, display, names=names, task=task, **parts)
        else:
            with simulate(**{**options, "engine": "serial", "workers": None, "make": None}) as same:
                _check_done(before, identity_of(settings, same))
    else:
        launch(settings, path, display, report=lambda line: None, task=task, **parts)
    result = read_run(path, task)
    if result.metrics:
        draw_curves(result.curves, result.title, path / "curves.png", result.usual_metric)
    return result


def _check_done(run: Run, now: dict[str, Any]) -> None:
    """Refuse to return the result of something else; other versions are only mentioned."""
    then = {**known_of(run), "engine": now["engine"]}
    other = differences(
        {n: then.pop(n) for n in VERSIONS if n in then}, {n: now[n] for n in VERSIONS}
    )
    refuse(run, differences(then, now), "has another result")
    if other:
        echo(f"The run in {run.path} was made with other versions: {'; '.join(other)}.")


def settings_of(arguments: Mapping[str, Any]) -> Settings:
    """Settings that describe the arguments of `simulate`; data and model belong to the task."""
    task: Task = arguments["task"]
    table: dict[str, Any] = {"data": OWN, "model": OWN}
    listed = {"averagers": [*named(arguments["averagers"]).values()]}
    listed["measures"] = [*arguments["measures"]]
    for setting, kind in kinds().items():
        thing = arguments.get(ARGUMENTS.get(setting, setting))
        if setting in listed:
            table[setting] = [choice_of(item, kind.registry) for item in listed[setting]]
        elif thing is not None:
            table[setting] = choice_of(thing, kind.registry)
    if isinstance(arguments["cohorts"], str):
        table["cohorts"] = arguments["cohorts"]
    table |= {"device": str(task.workspace.device)} if task.workspace else {}
    table |= asdict(arguments["faults"] or Faults())
    table |= asdict(options_of(RunOptions, arguments)) | asdict(options_of(LocalSGD, arguments))
    return make_settings(table)


def choice_of(thing: Any, registry: Mapping[str, type[Any]] = algorithms.BY_NAME) -> Choice:
    """The name of an object's class, with the hyper-parameters that differ from the defaults."""
    kind = type(thing)
    own = f"{kind.__module__}:{kind.__name__}"
    name = next((name for name, known in registry.items() if known is kind), own)
    values = {
        field.name: getattr(thing, field.name)
        for field in (fields(thing) if is_dataclass(thing) else ())
        if field.default is MISSING or getattr(thing, field.name) != field.default
    }
    simple = (bool, int, float, str, list, tuple)
    return Choice(
        name=name,
        **{n: v if isinstance(v, simple) else ADDRESS.sub("", repr(v)) for n, v in values.items()},
    )

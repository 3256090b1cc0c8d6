"""Experiments as TOML files define them, expanded into runs with their places in a sheet.

An experiment is methods x settings x variants; a scale says how much smaller than in the paper.
Runs are shared.  Averagers never affect training, so two experiments with the same training need
only one run; the averagers of all experiments in the package watch it.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from wima.core.errors import UsageError, check, is_number, unknown
from wima.core.statistics import last_rounds
from wima.experiments.sheet import Cell, Kind, Sheet, own_sheet, with_used_windows
from wima.runs.folder import run_name
from wima.runs.mistakes import first_mistake
from wima.runs.settings import (
    Choice,
    Settings,
    as_choice,
    change,
    load_settings,
    make_settings,
    parse_override,
    read_table,
    read_toml,
)

HERE = Path(__file__).parent
SHARED = ("methods", "settings", "scales", "printed")  # files that are not experiments
SectionType = TypeVar("SectionType", bound="Section")


class Section(BaseModel, extra="forbid"):
    """A checked section of a TOML file."""


class Method(Section):
    """A row of the paper's main table: algorithm, server optimizer and hyper-parameters."""

    label: str
    set: dict[str, Any]
    on: dict[str, dict[str, Any]] = {}  # setting -> overrides
    tune: dict[str, list[Any]] = {}  # key -> the paper's interval


class Setting(Section):
    """A data set with its split: a preset and overrides."""

    label: str
    preset: str
    set: dict[str, Any] = {}


class Variant(Section):
    """One of several runs of a method that differ in their settings."""

    set: dict[str, Any] = {}
    averagers: dict[str, str] = {}


class Scale(Section):
    """How much an experiment is scaled down from the paper."""

    note: str
    seeds: list[int]
    windows: float
    cycles: float
    last: int
    set: dict[str, Any] = {}
    presets: dict[str, dict[str, Any]] = {}


class Experiment(Section):
    """A table or figure: methods x settings x variants, and averagers that watch every run."""

    title: str
    shown: str = ""  # in the paper, for example "Table 2"
    kind: Kind = "table"
    methods: list[str]
    settings: list[str]
    rows: Literal["methods", "settings", "variants", "averagers", "tune"]
    column: str = ""  # the heading of the only column, if settings are rows
    set: dict[str, Any] = {}
    variants: dict[str, Variant] = {"": Variant()}
    averagers: dict[str, str]


@cache
def methods() -> dict[str, Method]:
    """The paper's methods by name."""
    return _read_sections(Method, HERE / "methods.toml")


@cache
def settings() -> dict[str, Setting]:
    """The paper's data sets and splits by name."""
    return _read_sections(Setting, HERE / "settings.toml")


@cache
def scales() -> dict[str, Scale]:
    """The scales by name."""
    return _read_sections(Scale, HERE / "scales.toml")


@cache
def experiments() -> dict[str, Experiment]:
    """The experiments that come with the package, by name."""
    files = [path for path in sorted(HERE.glob("*.toml")) if path.stem not in SHARED]
    return {path.stem: _checked(Experiment, read_toml(path), path) for path in files}


def find_experiment(name: str) -> tuple[str, Experiment]:
    """The name of the sheet and the experiment, given a known name or a .toml file."""
    if not name.endswith(".toml"):
        if name not in experiments():
            raise unknown("experiment", name, experiments())
        return name, experiments()[name]
    path = Path(name)
    experiment = _checked(Experiment, read_toml(path), path)
    for kind, names, registry in (
        ("method", experiment.methods, methods()),
        ("setting", experiment.settings, settings()),
    ):
        for item in names:
            if item not in registry:
                raise UsageError(f"{path}: {unknown(kind, item, registry)}")
    return path.stem, experiment


def _read_sections(kind: type[SectionType], path: Path) -> dict[str, SectionType]:
    return {name: _checked(kind, table, path) for name, table in read_toml(path).items()}


def _checked(kind: type[SectionType], table: Any, path: Path) -> SectionType:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        raise UsageError(f"{path} is not a valid experiment: {first_mistake(error)}.") from None


class Job(NamedTuple):
    """A run to execute: the name of its folder and its settings."""

    name: str
    settings: Settings


class PlannedRun(NamedTuple):
    """A run as an experiment defines it: its training, and the averagers that watch it."""

    row: str
    column: str
    setting: str
    method: str
    training: Settings  # all but seed and averagers
    averagers: dict[str, Choice]  # by heading


def expand(
    name: str,
    experiment: Experiment,
    scale_name: str,
    scale: Scale,
    seeds: list[int],
    command: str,
    only: list[str] | None = None,
) -> tuple[Sheet, list[Job]]:
    """The sheet of an experiment, and its runs without duplicates.

    only: methods and settings whose runs are returned; without methods, all methods, and likewise
    for settings.
    """
    requested = _requested(experiment, only or [])
    jobs: dict[str, Job] = {}
    cells = []
    own = [*_planned_runs(experiment, scale)]
    shared = _shared_averagers([*_known_runs(scale_name), *own])
    for planned, seed in product(own, seeds):
        averagers = list(shared[planned.training.run_id].values())
        run = planned.training.model_copy(update={"seed": seed, "averagers": averagers})
        job = Job(run_name(run, what=f"{planned.setting}-{planned.method}", seed=True), run)
        cells += list(_cells(experiment, planned, seed, job.name))
        if planned.setting in requested and planned.method in requested:
            jobs[job.name] = job
    sheet = Sheet(
        name=name,
        title=experiment.title,
        shown=experiment.shown,
        kind=experiment.kind,
        scale=scale_name,
        note=scale.note,
        command=command,
        last=scale.last,
        rows=list(dict.fromkeys(cell.row for cell in cells)),
        columns=list(dict.fromkeys(cell.column for cell in cells)),
        headings=list(dict.fromkeys(heading for cell in cells for heading in cell.models)),
        cells=cells,
    )
    return with_used_windows(sheet), list(jobs.values())


def _requested(experiment: Experiment, names: list[str]) -> set[str]:
    """The methods and settings whose runs are requested."""
    for name in names:
        choices = [*experiment.methods, *experiment.settings]
        if name not in choices:
            raise unknown("method or setting of the experiment", name, choices)
    requested: set[str] = set()
    for kind in (experiment.methods, experiment.settings):
        requested |= {name for name in kind if name in names} or set(kind)
    return requested


def _cells(experiment: Experiment, planned: PlannedRun, seed: int, run: str) -> Iterator[Cell]:
    """The cells of a run: one, or one per averager."""
    models = {heading: _model(choice) for heading, choice in planned.averagers.items()}
    rows = {planned.row: {"plain": "plain", **models}}
    if experiment.rows == "averagers":
        rows = {heading: {"plain": "plain", "average": model} for heading, model in models.items()}
    for row, names in rows.items():
        yield Cell(row=row, column=planned.column, seed=seed, run=run, models=names)


def _model(averager: Choice) -> str:
    """The name of the averager's model in records."""
    return str(averager.make("averagers").name)


@cache
def _known_runs(scale: str) -> list[PlannedRun]:
    """The runs of all experiments that come with the package: 480 in a second."""
    known = (_planned_runs(experiment, scales()[scale]) for experiment in experiments().values())
    return [run for runs in known for run in runs]


def _shared_averagers(runs: Iterable[PlannedRun]) -> dict[str, dict[str, Choice]]:
    """For each training, the averagers of all runs that include it, by model."""
    shared: dict[str, dict[str, Choice]] = {}
    for run in runs:
        models = shared.setdefault(run.training.run_id, {})
        models.update({_model(choice): choice for choice in run.averagers.values()})
    return {run: dict(sorted(models.items())) for run, models in shared.items()}


def _planned_runs(experiment: Experiment, scale: Scale) -> Iterator[PlannedRun]:
    for setting, method in product(experiment.settings, experiment.methods):
        for row, variant in _variants(experiment, methods()[method]):
            label = settings()[setting].label
            averagers = {**experiment.averagers, **variant.averagers}
            rows = {"methods": methods()[method].label, "settings": label}
            yield PlannedRun(
                row=rows.get(experiment.rows, row),
                column=experiment.column if experiment.rows == "settings" else label,
                setting=setting,
                method=method,
                training=_training_settings(experiment, scale, setting, method, variant),
                averagers={heading: _scaled(text, scale) for heading, text in averagers.items()},
            )


def _variants(experiment: Experiment, method: Method) -> Iterator[tuple[str, Variant]]:
    """The variants of a method, or the points of its grid."""
    if experiment.rows != "tune":
        yield from experiment.variants.items()
        return
    for values in product(*method.tune.values()):
        point = dict(zip(method.tune, values, strict=True))
        text = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point.items())
        yield f"{method.label}, {text}", Variant(set=point)


def _training_settings(
    experiment: Experiment, scale: Scale, setting_name: str, method_name: str, variant: Variant
) -> Settings:
    """The settings that training depends on, except the seed."""
    setting, method = settings()[setting_name], methods()[method_name]
    table = read_table(setting.preset)
    layers: list[dict[str, Any]] = [
        setting.set,
        scale.set,
        scale.presets.get(setting.preset, {}),
        experiment.set,
        method.set,
        method.on.get(setting_name, {}),
        variant.set,
        {"averagers": []},
    ]
    for layer in layers:
        for key, value in layer.items():
            change(table, key, value)
    training = make_settings(table)
    return training.model_copy(update={"schedule": _scaled(str(training.schedule), scale)})


def _scaled(text: str, scale: Scale) -> Choice:
    """An averager or schedule with the paper's lengths converted to the scale.

    `ema:window=W` becomes the decay with the same mean age of models as a window of W.
    """
    choice = as_choice(text)
    values = choice.parameters
    factors = {"window": scale.windows, "every": scale.windows, "cycle": scale.cycles}
    for key, factor in factors.items():
        if key in values and values[key] != "auto":
            check(is_number(values[key]), f"{text}: {key} must be a number, got {values[key]!r}.")
            share = 0 < values[key] < 1  # of the rounds: the same at every scale
            values[key] = values[key] if share else max(1, round(values[key] * factor))
    if choice.name == "ema" and "window" in values:
        window = values.pop("window")
        values["decay"] = round((window - 1) / (window + 1), 4)
    return Choice(name=choice.name, **values)


# Grids of settings x seeds, for `wima sweep` and `wima tune`.


def expand_grid(
    name: str, source: str, overrides: list[str], axes: list[str], seeds: list[int], command: str
) -> tuple[Sheet, list[Job]]:
    """All combinations of the axes' values; an axis is `key=value,value,...`."""
    keys = [parse_axis(text) for text in axes]
    points = [
        [f"{key}={value}" for (key, _), value in zip(keys, values, strict=True)]
        for values in product(*(values for _, values in keys))
    ]
    return expand_points(name, source, overrides, points, seeds, command)


def expand_points(
    name: str,
    source: str,
    overrides: list[str],
    points: list[list[str]],
    seeds: list[int],
    command: str,
) -> tuple[Sheet, list[Job]]:
    """A row per point, a list of `key=value`, and a run for each of its seeds."""
    jobs, cells = [], []
    for changes in points:
        row = ", ".join(changes) or source
        for seed in seeds:
            settings = load_settings(source, [*overrides, *changes, f"seed={seed}"])
            job = Job(run_name(settings, seed=True), settings)
            jobs.append(job)
            models = {"plain": "plain"} | {a.name: a.name for a in settings.make("averagers")}
            cells.append(Cell(row, Path(source).stem, seed, job.name, models))
    headings = list(dict.fromkeys(heading for cell in cells for heading in cell.models))
    rounds = min(job.settings.rounds for job in jobs)
    keys = [change.partition("=")[0] for change in points[0]]
    sheet = own_sheet(
        name,
        f"{Path(source).stem}: {', '.join(keys) or 'seeds'}",
        last_rounds(rounds),
        command=command,
        rows=list(dict.fromkeys(cell.row for cell in cells)),
        columns=[Path(source).stem],
        headings=headings,
        cells=cells,
    )
    return sheet, list({job.name: job for job in jobs}.values())


def parse_axis(text: str) -> tuple[str, list[str]]:
    """`key=value,value` as a key and its values as strings."""
    key, equals, values = text.partition("=")
    check(bool(key and equals and values), f"Expected --grid key=value,value, got {text!r}.")
    listed = values.split(",")
    for value in listed:
        parse_override(f"{key}={value}")
    return key, listed


def parse_seeds(text: str) -> list[int]:
    """`0,1,2` or `0-4` as seeds."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise UsageError(f"Expected seeds like 0,1,2 or 0-4, got {text!r}.") from None
    check(bool(seeds) and min(seeds) >= 0, f"Expected seeds like 0,1,2 or 0-4, got {text!r}.")
    return list(dict.fromkeys(seeds))

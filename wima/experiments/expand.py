"""Expands an experiment and a scale into runs, with their settings and places in the sheet.

Runs are shared.  Averagers never affect training, so two experiments with the same training need
only one run; the averagers of all experiments in the package watch it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from wima import averaging
from wima.core.checks import is_number
from wima.core.errors import check, unknown
from wima.experiments.definition import (
    Experiment,
    Method,
    Scale,
    Variant,
    experiments,
    methods,
    settings,
)
from wima.experiments.sheet import Cell, Sheet, with_used_windows
from wima.runs.folder import run_name
from wima.runs.settings import Choice, Settings, as_choice, change, make_settings, read_table


class Job(NamedTuple):
    """A run to execute: the name of its folder and its settings."""

    name: str
    settings: Settings


class Training(NamedTuple):
    """A run as an experiment defines it: its training, and the averagers that watch it."""

    row: str
    column: str
    setting: str
    method: str
    steering: Settings  # without averagers
    watched: dict[str, Choice]  # heading -> averager


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
    kept = _kept(experiment, only or [])
    jobs: dict[str, Job] = {}
    cells = []
    shared = _watchers(scale, [*experiments().values(), experiment])
    for training, seed in product(_trainings(experiment, scale), seeds):
        averagers = list(shared[training.steering.run_id].values())
        made = training.steering.model_copy(update={"seed": seed, "averagers": averagers})
        job = Job(run_name(made, what=f"{training.setting}-{training.method}", seed=True), made)
        cells += list(_cells(experiment, training, seed, job.name))
        if training.setting in kept and training.method in kept:
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


def _cells(experiment: Experiment, training: Training, seed: int, run: str) -> Iterator[Cell]:
    """The cells of a run: one, or one per averager."""
    models = {heading: _model(choice) for heading, choice in training.watched.items()}
    if experiment.rows == "averagers":
        for heading, model in models.items():
            both = {"plain": "plain", "average": model}
            yield Cell(heading, training.column, seed, run, both)
    else:
        yield Cell(training.row, training.column, seed, run, {"plain": "plain", **models})


def _model(averager: Choice) -> str:
    """The name of the averager's model in records."""
    return averager.make("averager", averaging.BY_NAME).name


def _watchers(scale: Scale, known: list[Experiment]) -> dict[str, dict[str, Choice]]:
    """For each training, the averagers of all experiments that include it, by model."""
    found: dict[str, dict[str, Choice]] = {}
    for experiment in known:
        for training in _trainings(experiment, scale):
            models = found.setdefault(training.steering.run_id, {})
            models.update({_model(choice): choice for choice in training.watched.values()})
    return {run: dict(sorted(models.items())) for run, models in found.items()}


def _kept(experiment: Experiment, names: list[str]) -> set[str]:
    """The methods and settings whose runs are requested."""
    for name in names:
        known = [*experiment.methods, *experiment.settings]
        if name not in known:
            raise unknown("method or setting of the experiment", name, known)
    kept: set[str] = set()
    for kind in (experiment.methods, experiment.settings):
        kept |= {name for name in kind if name in names} or set(kind)
    return kept


def _trainings(experiment: Experiment, scale: Scale) -> Iterator[Training]:
    for setting, method in product(experiment.settings, experiment.methods):
        for row, variant in _variants(experiment, methods()[method]):
            column = settings()[setting].label
            watched = {**experiment.averagers, **variant.averagers}
            row = {"methods": methods()[method].label, "settings": column}.get(experiment.rows, row)
            yield Training(
                row,
                experiment.column if experiment.rows == "settings" else column,
                setting,
                method,
                _steering(experiment, scale, setting, method, variant),
                {heading: _scaled(text, scale) for heading, text in watched.items()},
            )


def _variants(experiment: Experiment, method: Method) -> Iterator[tuple[str, Variant]]:
    """The variants of a method, or the points of its grid."""
    if experiment.rows != "tune":
        yield from experiment.variants.items()
        return
    for values in product(*method.tune.values()):
        point = dict(zip(method.tune, values, strict=True))
        named = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in point.items())
        yield f"{method.label}, {named}", Variant(set=point)


def _steering(
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
    made = make_settings(table)
    return made.model_copy(update={"schedule": _scaled(str(made.schedule), scale)})


def _scaled(text: str, scale: Scale) -> Choice:
    """An averager or schedule with the paper's lengths converted to the scale.

    `ema:window=W` becomes the decay with the same mean age of models as a window of W.
    """
    choice = as_choice(text)
    given = choice.parameters
    for key, factor in (
        ("window", scale.windows),
        ("every", scale.windows),
        ("cycle", scale.cycles),
    ):
        if key in given and given[key] != "auto":
            check(is_number(given[key]), f"{text}: {key} must be a number, got {given[key]!r}.")
            share = 0 < given[key] < 1  # of the rounds: the same at every scale
            given[key] = given[key] if share else max(1, round(given[key] * factor))
    if choice.name == "ema" and "window" in given:
        window = given.pop("window")
        given["decay"] = round((window - 1) / (window + 1), 4)
    return Choice(name=choice.name, **given)

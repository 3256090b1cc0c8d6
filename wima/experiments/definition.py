"""Experiments, methods, settings and scales, as their TOML files define them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from wima.core.errors import UsageError, unknown
from wima.experiments.sheet import Kind
from wima.runs.settings import read_toml

HERE = Path(__file__).parent
SHARED = ("methods", "settings", "scales", "printed")  # files that are not experiments
Made = TypeVar("Made", bound="Section")


class Section(BaseModel):
    """A checked section of a TOML file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


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
    return _named(Method, HERE / "methods.toml")


@cache
def settings() -> dict[str, Setting]:
    """The paper's data sets and splits by name."""
    return _named(Setting, HERE / "settings.toml")


@cache
def scales() -> dict[str, Scale]:
    """The scales by name."""
    return _named(Scale, HERE / "scales.toml")


@cache
def experiments() -> dict[str, Experiment]:
    """The experiments that come with the package, by name."""
    files = [path for path in sorted(HERE.glob("*.toml")) if path.stem not in SHARED]
    return {path.stem: _checked(Experiment, read_toml(path), path) for path in files}


def find_experiment(name: str) -> tuple[str, Experiment]:
    """The name of the sheet and the experiment, given a known name or a .toml file."""
    if name.endswith(".toml"):
        path = Path(name)
        found = _checked(Experiment, read_toml(path), path)
        _check_names(found, path)
        return path.stem, found
    known = experiments()
    if name not in known:
        raise unknown("experiment", name, known)
    return name, known[name]


def _check_names(experiment: Experiment, path: Path) -> None:
    for kind, given, known in (
        ("method", experiment.methods, methods()),
        ("setting", experiment.settings, settings()),
    ):
        for name in given:
            if name not in known:
                raise UsageError(f"{path}: {unknown(kind, name, known)}")


def _named(kind: type[Made], path: Path) -> dict[str, Made]:
    return {name: _checked(kind, table, path) for name, table in read_toml(path).items()}


def _checked(kind: type[Made], table: Any, path: Path) -> Made:
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
        raise UsageError(f"{path} is not a valid experiment: {where}: {message}.") from None

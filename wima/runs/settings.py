"""The settings of a run: a preset or a TOML file, plus key=value overrides, checked and resolved.

A choice by name with hyper-parameters (algorithm, server, averagers) is written
`"wima:window=50:part=classifier"` or `{name = "wima", window = 50, part = "classifier"}`.
A name may be that of a user's own class or function, see `runs/names.py`.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from wima.core.errors import UsageError, check, unknown
from wima.data.batches import LocalSGD
from wima.engine.faults import Faults
from wima.engine.options import RunOptions
from wima.runs.names import check_call, find, parameters, split
from wima.storage.reading import read_text

CHOICES = ("data", "model", "algorithm", "server", "schedule", "privacy")
PRESETS = Path(__file__).parent / "presets"
Made = TypeVar("Made")
Part = TypeVar("Part", RunOptions, LocalSGD, Faults)


class Choice(BaseModel):
    """Something by name, with its hyper-parameters."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        name, pairs = split(given)
        return {"name": name, **dict(parse_override(pair) for pair in pairs)}

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.parameters.items())])

    @property
    def parameters(self) -> dict[str, Any]:
        """Its hyper-parameters."""
        return dict(self.model_extra or {})

    def make(self, kind: str, registry: Mapping[str, Callable[..., Made]]) -> Made:
        """An instance of the class of that name."""
        made = self.call(kind, registry)
        check_call(f"{kind} {self.name!r}", made)
        return made()

    def call(self, kind: str, registry: Mapping[str, Callable[..., Made]]) -> Callable[..., Made]:
        """The function of that name, registered or own, with the hyper-parameters filled in."""
        made = find(kind, self.name, registry)
        known = parameters(kind, made)
        for name in self.parameters:
            if name not in known:
                raise unknown(f"hyper-parameter of {self.name}", name, known or ["(it has none)"])
        return partial(made, **self.parameters)


# Settings that say how a run is computed and kept, not what it gives.
NOT_IN_RESULTS = {"engine", "workers", "device", "checkpoint_every", "checkpoint_minutes"}
NOT_IN_RESULTS |= {"collective", "window_store", "client_memory_gb", "snapshots", "trackers"}
LATER = {"cohorts", "privacy"}  # came after runs had names, so they count only where they are set
CHANGEABLE = NOT_IN_RESULTS - {"device"}  # when a run is resumed; engine: see `runs/ranks.py`
PARTS = (RunOptions, LocalSGD, Faults)  # these declare their own options

if TYPE_CHECKING:

    class _Options(BaseModel, RunOptions, LocalSGD, Faults, frozen=True): ...

else:
    _Options = create_model(
        "_Options",
        **{
            field.name: (get_type_hints(part)[field.name], field.default)
            for part in PARTS
            for field in fields(part)
        },
    )


class Settings(_Options, frozen=True, extra="forbid", strict=True):
    """Everything that determines a run; `engine`, `workers` and `device` only up to rounding.

    Besides what follows, the options of `RunOptions`, `LocalSGD` and `Faults`.
    """

    data: Choice = Choice(name="digits")  # a known data set, or the path of an .npz file
    clients: int | None = None  # as the data set has them, or 100
    alpha: float | Literal["iid"] | None = None  # Dirichlet concentration; 0: one class per client
    split: str | None = None  # a file that says which client holds which example
    data_seed: int = 0  # of the split; not of the run, so that seeds share clients
    model: Choice = Choice(name="mlp")
    algorithm: Choice = Choice(name="fedavg")
    server: Choice = Choice(name="sgd")
    averagers: list[Choice] = Field([Choice(name="wima")])
    schedule: Choice = Choice(name="constant")
    cohorts: Literal["uniform", "poisson"] = "uniform"  # how a round's clients are drawn
    privacy: Choice | None = None  # clip clients' updates and add noise
    eval_batch_size: int = 256
    device: str = "cpu"  # or cuda, cuda:1, mps
    checkpoint_every: int = Field(100, ge=0)  # rounds; 0: only by time
    checkpoint_minutes: float = Field(10.0, ge=0)  # 0: only by rounds
    window_store: Literal["memory", "files"] = "memory"  # past models
    client_memory_gb: float | None = None  # of clients' memory in memory; the rest is in files
    store_dtype: Literal["float32", "bfloat16"] = "float32"  # of past models
    snapshots: int = Field(0, ge=0)  # rounds between sums kept for `wima window`; 0: none
    trackers: list[str] = Field([])  # where the run is recorded besides its folder

    @model_validator(mode="before")
    @classmethod
    def _window(cls, given: Any) -> Any:
        """`window = 50` or `[5, 50]` is short for WIMA averagers with these windows."""
        if not isinstance(given, dict) or "window" not in given:
            return given
        given = dict(given)
        windows = given.pop("window")
        listed = windows if isinstance(windows, list) else [windows]
        given["averagers"] = [{"name": "wima", "window": window} for window in listed]
        return given

    @field_validator("averagers", "trackers", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        return given if isinstance(given, list) else [given] if given else []

    @property
    def run_id(self) -> str:
        """A hash of all that matters for the results."""
        matters = json.dumps(self.in_results(), sort_keys=True)
        return hashlib.sha256(matters.encode()).hexdigest()[:10]

    def in_results(self) -> dict[str, Any]:
        """The settings that matter for the results, as JSON has them."""
        found = self.model_dump(mode="json", exclude=NOT_IN_RESULTS)
        defaults = {name: type(self).model_fields[name].default for name in LATER}
        return {n: v for n, v in found.items() if n not in LATER or v != defaults[n]}

    def part(self, kind: type[Part]) -> Part:
        """The options that belong to a dataclass such as `LocalSGD`."""
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    def to_toml(self) -> str:
        """All settings, resolved; `wima run` reads the text back."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))  # JSON has no infinity, TOML has


def as_choice(given: Any) -> Choice:
    """A choice from a text or a table."""
    try:
        return Choice.model_validate(given)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(f"Expected name:key=value:..., got {given!r:.80}: {reason}.") from None


def load_settings(source: str, overrides: list[str]) -> Settings:
    """Settings of a preset or a .toml file, changed by `key=value` texts."""
    table = read_table(source)
    changes = dict(parse_override(text) for text in overrides)
    for asked, instead in (("window", "averagers"), ("averagers", "window")):
        if asked in changes and instead not in changes:  # what is asked for replaces the file's
            table.pop(instead, None)
    for key, value in sorted(changes.items(), key=lambda change: "." in change[0]):
        # Complete choices first, so that `algorithm.mu=1 algorithm=fedprox` keeps mu.
        change(table, key, value)
    return make_settings(table)


def change_settings(settings: Settings, overrides: Sequence[str], allowed: Set[str]) -> Settings:
    """The settings with some `key=value` changed, of those that may be."""
    changes = dict(parse_override(text) for text in overrides)
    for key in changes:
        names = ", ".join(sorted(allowed))
        check(key in allowed, f"{key} cannot be changed in a run that was begun; {names} can.")
    return make_settings({**settings.model_dump(mode="json", exclude_none=True), **changes})


def make_settings(table: dict[str, Any]) -> Settings:
    """Checked settings from a table."""
    if "window" in table and "averagers" in table:
        raise UsageError("Give window or averagers, not both: window is short for WIMA averagers.")
    try:
        settings = Settings.model_validate(table)
        settings.to_toml().encode()
        return settings
    except ValidationError as error:
        raise UsageError("\n".join(_explain(item) for item in error.errors())) from None
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"Settings must be values that TOML can hold: {error}.") from None


def _explain(item: Any) -> str:
    """One of pydantic's errors as a sentence."""
    path = [str(part) for part in item["loc"]]
    if item["type"] == "extra_forbidden":
        return str(unknown("setting", path[-1], [*Settings.model_fields, "window"]))
    where = path[0] if path else "settings"
    return f"{where}: {item['msg'][0].lower()}{item['msg'][1:]}, got {item['input']!r}."


def read_table(source: str) -> dict[str, Any]:
    """The table in a .toml file, or in the preset of that name."""
    path = Path(source) if source.endswith(".toml") else PRESETS / f"{source}.toml"
    if not path.is_file() and not source.endswith(".toml"):
        raise unknown("preset", source, presets())
    return read_toml(path)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None


def presets() -> list[str]:
    """The names of all presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value`: the value as TOML would read it, a list where there are commas, else a text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"Expected key=value, got {text!r}.")
    read = _value(value)
    if isinstance(read, str) and read == value and "," in value:
        return key.strip(), [_value(part) for part in value.split(",")]
    return key.strip(), read


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (
        ValueError,
        RecursionError,
    ):  # too many digits, or levels
        pass
    try:
        return float(text)  # .1 and 1. are numbers too
    except ValueError:
        return text


def change(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; `algorithm.mu` works on `algorithm = "fedprox"` too."""
    *parents, last = key.split(".")
    for parent in parents:
        field = Settings.model_fields.get(parent)
        below = table.get(parent, field.default if field else {})
        table[parent] = _as_table(parent, below)
        table = table[parent]
    table[last] = value


def _as_table(key: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str | Choice) and key in CHOICES:
        return as_choice(value).model_dump()
    if not isinstance(value, dict):
        raise UsageError(f"{key} has no settings of its own, so {key}.something cannot be set.")
    return dict(value)

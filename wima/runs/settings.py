"""The settings of a run: a preset or a TOML file, plus key=value overrides, checked and resolved.

A choice by name with hyper-parameters (algorithm, server, averagers) is written
`"wima:window=50:part=classifier"` or `{name = "wima", window = 50, part = "classifier"}`.
A name may refer to a user's own class or function; see `runs/own_code.py`.
"""

import hashlib
import json
import tomllib
from collections.abc import Sequence, Set
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

import tomli_w
from pydantic import BaseModel, Field, ValidationError, create_model
from pydantic.functional_validators import field_validator, model_validator

from wima.core.errors import Mistakes, UsageError, check, unknown
from wima.runs.mistakes import explain
from wima.runs.own_code import check_call, check_choice, find, is_own, kinds, parameters, split
from wima.simulation.engines import NAMES as ENGINES
from wima.simulation.options import Faults, LocalSGD, RunOptions
from wima.storage.files import read_text

PRESETS = Path(__file__).parent / "presets"


def read_table(source: str) -> dict[str, Any]:
    """The table in a .toml file or a preset."""
    check(
        "=" not in source or source.endswith(".toml"),
        f"Expected a preset or a .toml file before the settings, got {source!r}; for example: "
        f"wima run digits {source}",
    )
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
    """`key=value`, with the value as TOML reads it; with commas a list, otherwise a string."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"Expected key=value without spaces, got {text!r}.")
    read = _value(value)
    if isinstance(read, str) and read == value and "," in value:
        return key.strip(), [_value(part) for part in value.split(",")]
    return key.strip(), read


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or too many digits or levels
        pass
    try:
        return float(text)  # .1 and 1. are numbers too
    except ValueError:
        return text


CHOICES = ("data", "model", "algorithm", "server", "schedule", "privacy", "finetune")
INSTEAD = (("window", "averagers"), ("alpha", "split"))  # one replaces the other
Part = TypeVar("Part", RunOptions, LocalSGD, Faults)


class Choice(BaseModel, extra="allow", frozen=True):
    """A name with hyper-parameters."""

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

    def make(self, setting: str) -> Any:
        """An instance of the class that the setting names."""
        made = self.call(setting)
        check_call(f"{kinds()[setting].name} {self.name!r}", made.func, **made.keywords)
        return made()

    def call(self, setting: str) -> partial[Any]:
        """What the setting names, registered or the user's own, with the hyper-parameters bound."""
        kind = kinds()[setting]
        made = find(kind, self.name)
        known = parameters(kind.name, made)
        for name in self.parameters:
            if name not in known:
                raise unknown(f"hyper-parameter of {self.name}", name, known or ["(it has none)"])
        return partial(made, **self.parameters)


# Settings that affect how a run is computed and stored, but not its result.
NOT_IN_RESULTS = {"engine", "workers", "device", "checkpoint_every", "checkpoint_minutes"}
NOT_IN_RESULTS |= {"window_store", "client_memory_gb", "snapshots", "trackers"}
# These were added after hashes of runs were defined, so they count only if they are set.
LATER = {"cohorts", "privacy", "client_eval_every", "client_sample", "client_test", "calibration"}
LATER |= {"finetune", "measures"}
CHANGEABLE = NOT_IN_RESULTS - {"device"}  # when a run is resumed; engine: see `settings_to_resume`
PARTS = (RunOptions, LocalSGD, Faults)  # they declare their own options

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

    Includes the options of `RunOptions`, `LocalSGD` and `Faults`.
    """

    data: Choice = Choice(name="digits")  # a known data set, or the path of an .npz file
    clients: int | None = None  # default: as in the data set, or 100
    alpha: float | Literal["iid"] | None = None  # Dirichlet concentration; 0: one class per client
    split: str | None = None  # a file that assigns examples to clients, or "pachinko"
    data_seed: int = Field(0, ge=0)  # of the split; not `seed`, so that all seeds share clients
    model: Choice = Choice(name="mlp")
    algorithm: Choice = Choice(name="fedavg")
    server: Choice = Choice(name="sgd")
    averagers: list[Choice] = Field([Choice(name="wima")])
    schedule: Choice = Choice(name="constant")
    cohorts: Literal["uniform", "poisson"] = "uniform"  # how a round's clients are drawn
    privacy: Choice | None = None  # clip clients' updates and add noise
    client_test: float | None = None  # share of each client's examples held out for testing
    finetune: Choice | None = None  # clients fine-tune the final models
    measures: list[Choice] = Field([])  # what else to record about models: the user's own classes
    eval_batch_size: int = Field(256, ge=1)
    device: str = "cpu"  # or cuda, cuda:1, mps
    checkpoint_every: int = Field(100, ge=0)  # rounds; 0: only by time
    checkpoint_minutes: float = Field(10.0, ge=0)  # 0: only by rounds
    window_store: Literal["memory", "files"] = "memory"  # past models
    client_memory_gb: float | None = None  # of clients' state kept in memory; the rest is in files
    store_dtype: Literal["float32", "bfloat16"] = "float32"  # of past models
    snapshots: int = Field(0, ge=0)  # rounds between saved means of models; 0: none
    trackers: list[str] = Field([])  # where the run is recorded, in addition to its folder

    @model_validator(mode="before")
    @classmethod
    def _resolved(cls, given: Any) -> Any:
        """Resolve what stands for other settings, and what earlier versions wrote.

        "none" unsets an optional setting, since TOML has no null.  `window = 50` or `[5, 50]` is
        short for WIMA averagers with these windows.  `collective` was removed.
        """
        if not isinstance(given, dict):
            return given
        collective = given.get("collective", "gather")
        check(
            collective == "gather",
            f"collective={collective} was removed; remove this setting: all ranks send their "
            "clients' updates to rank 0, as with collective=gather.",
        )
        unset = {name for name, field in cls.model_fields.items() if field.default is None}
        removed = {name for name in unset & given.keys() if given[name] in ("none", "None")}
        table = {k: v for k, v in given.items() if k not in removed | {"collective", "window"}}
        if "window" in given:
            windows = given["window"] if isinstance(given["window"], list) else [given["window"]]
            table["averagers"] = [{"name": "wima", "window": window} for window in windows]
        return table

    @field_validator("averagers", "measures", "trackers", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        listed = given if isinstance(given, list) else [given] if given else []
        for text in listed:
            name = text.partition(":")[0] if isinstance(text, str) else ""
            check("=" not in name, f"expected hyper-parameters after a colon, got {text!r}.")
        return listed

    def make(self, setting: str) -> Any:
        """What a setting names: an object, a list of them, or None."""
        chosen = getattr(self, setting)
        if isinstance(chosen, list):
            return [choice.make(setting) for choice in chosen]
        return None if chosen is None else chosen.make(setting)

    @property
    def run_id(self) -> str:
        """A hash of all settings that affect the results."""
        matters = json.dumps(self.in_results(), sort_keys=True)
        return hashlib.sha256(matters.encode()).hexdigest()[:10]

    def in_results(self) -> dict[str, Any]:
        """The settings that affect the results, as JSON."""
        found = self.model_dump(mode="json", exclude=NOT_IN_RESULTS)
        defaults = {name: type(self).model_fields[name].default for name in LATER}
        return {n: v for n, v in found.items() if n not in LATER or v != defaults[n]}

    def own_names(self) -> list[str]:
        """The names that refer to a user's own code."""
        choices = [*(getattr(self, key) for key in CHOICES), *self.averagers, *self.measures]
        return [choice.name for choice in choices if choice and is_own(choice.name)]

    def part(self, kind: type[Part]) -> Part:
        """The options that belong to a dataclass such as `LocalSGD`."""
        return kind(**{field.name: getattr(self, field.name) for field in fields(kind)})

    def to_toml(self) -> str:
        """All settings, resolved; `wima run` reads the text back."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))  # JSON has no infinity, TOML has


NAMES = (*Settings.model_fields, "window")


def as_choice(given: Any) -> Choice:
    """A choice from a string or a table."""
    try:
        return Choice.model_validate(given)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(f"Expected name:key=value:..., got {given!r:.80}: {reason}.") from None


def load_settings(source: str, overrides: Sequence[str]) -> Settings:
    """Settings from a preset or a .toml file, with `key=value` overrides; reports all mistakes."""
    table, changes = read_table(source), dict[str, Any]()
    mistakes = Mistakes()
    for text in overrides:
        with mistakes.noted():
            key, value = parse_override(text)
            changes[key] = value
    for one, other in (*INSTEAD, *(pair[::-1] for pair in INSTEAD)):
        if one in changes and other not in changes:  # overrides replace the file's
            table.pop(other, None)
    for key, value in sorted(changes.items(), key=lambda change: "." in change[0]):
        # Complete choices first, so that `algorithm.mu=1 algorithm=fedprox` keeps mu.
        with mistakes.noted():
            change(table, key, value)
    own = table if source.endswith(".toml") else ()  # presets are correct
    settings = _validated(table, mistakes)
    _check_values(settings, {key.partition(".")[0] for key in (*changes, *own)}, mistakes)
    mistakes.check()
    return settings


def change_settings(settings: Settings, overrides: Sequence[str]) -> Settings:
    """The settings of an existing run with `key=value` overrides, if these keys may be changed."""
    changes = dict(parse_override(text) for text in overrides)
    for key in changes:
        names = ", ".join(sorted(CHANGEABLE))
        check(key in CHANGEABLE, f"{key} cannot be changed in an existing run; {names} can.")
    return make_settings({**settings.model_dump(mode="json", exclude_none=True), **changes})


def make_settings(table: dict[str, Any]) -> Settings:
    """Checked settings from a table."""
    mistakes = Mistakes()
    settings = _validated(table, mistakes)
    mistakes.check()
    return settings


def _validated(table: dict[str, Any], mistakes: Mistakes) -> Settings:
    """Settings from the valid part of a table; mistakes are collected."""
    if "window" in table and "averagers" in table:
        mistakes.add("Set window or averagers, not both: window is short for WIMA averagers.")
        table = {key: value for key, value in table.items() if key != "window"}
    try:
        settings = Settings.model_validate(table)
        settings.to_toml().encode()
        return settings
    except ValidationError as error:
        items = error.errors()
        mistakes.add(*explain(items, NAMES))
        wrong = {item["loc"][0] for item in items if item["loc"]}
        wrong |= {"window"} if "averagers" in wrong else set()
        return _validated({k: v for k, v in table.items() if wrong and k not in wrong}, mistakes)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        mistakes.add(f"Settings must be values that TOML can represent: {error}.")
        return _validated({}, mistakes)


def _check_values(settings: Settings, keys: Set[str], mistakes: Mistakes) -> None:
    """Collect mistakes in these settings other than wrong types."""
    keys = keys | {"averagers"} if "window" in keys else keys
    for part in PARTS:
        for name in sorted(keys & {field.name for field in fields(part)}):
            with mistakes.noted():
                part(**{name: getattr(settings, name)})
    if settings.engine not in ENGINES:
        mistakes.add(str(unknown("engine", settings.engine, ENGINES)))
    for name in sorted(keys & {*CHOICES, "averagers", "measures"}):
        given = getattr(settings, name)
        for choice in given if isinstance(given, list) else [given] if given else []:
            with mistakes.noted():
                check_choice(name, choice)


def change(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; `algorithm.mu` works on `algorithm = "fedprox"` too."""
    *parents, last = key.split(".")
    for parent in parents:
        field = Settings.model_fields.get(parent)
        below = table.get(parent, field.default if field else {})
        if isinstance(below, str | Choice) and parent in CHOICES:
            below = as_choice(below).model_dump()
        if not isinstance(below, dict):
            raise UsageError(
                f"{parent} has no hyper-parameters, so {parent}.something cannot be set."
            )
        table[parent] = dict(below)
        table = table[parent]
    table[last] = value

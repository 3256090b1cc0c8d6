"""Which runs belong to a method, its name, and in which other settings it differs from others."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import NamedTuple

from wima.core.errors import check, unknown
from wima.report.gather import Trace
from wima.runs.own_code import is_own, label, split
from wima.runs.settings import CHOICES, NOT_IN_RESULTS, Settings

# Runs of one method may differ in these: averages never affect training.
APART = {"seed", "averagers", *NOT_IN_RESULTS}
METHOD = ("algorithm", "server")
USUAL = ("fedavg", "sgd")  # the default baseline


class Method(NamedTuple):
    """Runs with the same settings, except for the seed and the averages."""

    name: str
    facts: dict[str, str]  # the settings that they share, as strings
    runs: list[Trace]  # the one that got furthest first


def methods_of(runs: Sequence[Trace], by: Sequence[str] = ()) -> tuple[list[Method], list[str]]:
    """The methods, plain FedAvg first, and the settings that name them.

    These are `by`, if given; else algorithm and server; if those do not vary, all that do.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Trace]] = {}
    for run in sorted(runs, key=_furthest_first):
        groups.setdefault(tuple(_facts(run.settings).items()), []).append(run)
    facts = [dict(key) for key in groups]
    varied = [key for key in facts[0] if len({own[key] for own in facts}) > 1]
    _check_data(facts)
    for key in by:
        if key not in facts[0]:
            raise unknown("setting for --by", key, facts[0])
    usual = [*METHOD] if {*METHOD} & {*varied} or not varied else varied
    chosen = list(by) or usual
    names = _names(facts, chosen)
    methods = [Method(*made) for made in zip(names, facts, groups.values(), strict=True)]
    return sorted(methods, key=lambda method: _usual_first(method, methods, chosen)), chosen


def also_differ(method: Method, base: Method, by: Sequence[str]) -> list[str]:
    """The settings that differ, apart from those that name the methods."""
    return [
        key for key, value in method.facts.items() if key not in by and value != base.facts[key]
    ]


def _facts(settings: Settings) -> dict[str, str]:
    names = (name for name in type(settings).model_fields if name not in APART)
    return {name: str(getattr(settings, name)) for name in names}


def _check_data(facts: Sequence[dict[str, str]]) -> None:
    data = sorted({own["data"] for own in facts})
    check(
        len(data) == 1,
        f"The runs are on different data: {', '.join(data)}. Use runs on one data set.",
    )


def _names(facts: Sequence[dict[str, str]], by: Sequence[str]) -> list[str]:
    """Names from the settings `by`; names that clash also get the other settings that differ."""
    brief = [{**own, by[0]: _brief(own[by[0]], [f[by[0]] for f in facts])} for own in facts]
    names = [_name(own, by) for own in brief]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        alike = [brief[place] for place in places]
        more = [key for key in brief[0] if len({own[key] for own in alike}) > 1]
        for place in places:
            names[place] = _name(brief[place], [*by, *more])
    return names


def _brief(value: str, values: Sequence[str]) -> str:
    """`fedprox:mu=0.01` without its hyper-parameters, if no other value has that name."""
    name = split(value)[0]
    shown = label(name) if is_own(name) else name
    alone = {v for v in values if split(v)[0] == name} == {value}
    return shown if alone else value.replace(name, shown, 1)


def _name(facts: dict[str, str], by: Sequence[str]) -> str:
    """A name such as `fedavg, momentum:lr=0.1, batch_size=5`, without choices at their default."""
    parts: list[str] = []
    for key in by:
        usual = bool(parts) and key in CHOICES and facts[key] == _default(key)
        if not usual:
            parts.append(facts[key] if key in CHOICES else f"{key}={facts[key]}")
    return ", ".join(parts)


def _default(key: str) -> str:
    return str(Settings.model_fields[key].default)


def _furthest_first(run: Trace) -> tuple[bool, int, str]:
    """Of runs with the same settings and seed, the one that got furthest counts."""
    return run.state != "done", -run.done, str(run.path)


def _usual_first(
    method: Method, methods: Sequence[Method], by: Sequence[str]
) -> tuple[int, list[str | float]]:
    """Plain FedAvg first (if several, the one that differs least from the others), then by name."""
    if tuple(method.facts[key] for key in METHOD) != USUAL:
        return sys.maxsize, by_size(method.name)
    return sum(len(also_differ(method, one, by)) for one in methods), by_size(method.name)


def by_size(name: str) -> list[str | float]:
    """A sort key for names that orders the numbers in them by value."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]

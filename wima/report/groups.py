"""The table of runs that are in no sheet: runs that differ only in the seed form one row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from wima.core.statistics import last_rounds
from wima.experiments.sheet import Sheet
from wima.report.gather import Omitted, Trace
from wima.report.measure import Measure
from wima.report.tables import Members, Table, make_table
from wima.runs.settings import NOT_IN_RESULTS, Settings

NAME = "runs"
LIMIT = 60  # characters of a row's name
APART = {"seed", *NOT_IN_RESULTS}  # what runs of one row may differ in


def runs_table(runs: Sequence[Trace], measure: Measure) -> tuple[Table, list[Omitted]]:
    """A row per group of runs, a heading per model; also returns runs that repeat another one."""
    groups: dict[tuple[tuple[str, str], ...], dict[int, Trace]] = {}
    repeats = []
    for run in sorted(runs, key=_best_first):
        group = groups.setdefault(tuple(_facts(run.settings).items()), {})
        first = group.setdefault(run.settings.seed, run)
        if first is not run:
            repeats.append(Omitted(str(run.path), f"the same settings and seed as {first.path}"))
    keys = sorted(groups)
    names = group_names([dict(key) for key in keys])
    rows = [name.short for name in names]
    headings = list(dict.fromkeys(m for run in runs for m in run.curves)) or ["plain"]
    headings.sort(key=lambda heading: heading != "plain")
    places = {(row, ""): _members(groups[key]) for row, key in zip(rows, keys, strict=True)}
    shortest = min((run.settings.rounds for run in runs), default=1)
    last = measure.last or last_rounds(shortest)
    title = "Runs" if len(rows) > 1 else f"Runs of {rows[0]}"
    sheet = Sheet(NAME, title, "", "table", "", "", "", last, rows, [""], headings, [])
    table = make_table(sheet, places, last, measure)
    return table._replace(long={n.short: n.whole for n in names if n.whole != n.short}), repeats


def _best_first(run: Trace) -> tuple[bool, int, str]:
    """Of runs with the same settings and seed, the one that got furthest is shown."""
    return run.state != "done", -run.done, str(run.path)


def _members(seeds: dict[int, Trace]) -> Members:
    models = dict.fromkeys(model for run in seeds.values() for model in run.curves) or ["plain"]
    return {model: {seed: (run, model) for seed, run in seeds.items()} for model in models}


def _facts(settings: Settings) -> dict[str, str]:
    """The settings that define a group, as short strings, without those that are not set."""
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    return {n: _text(v) for n, v in values.items() if n not in APART and v is not None}


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


class Name(NamedTuple):
    """What a group of runs is called."""

    short: str  # of at most LIMIT characters
    whole: str  # with everything that differs


def group_names(groups: Sequence[dict[str, str]]) -> list[Name]:
    """A unique name for each group: algorithm and data, and what else distinguishes it."""
    alike: dict[str, list[dict[str, str]]] = {}
    for group in groups:
        alike.setdefault(_first(group), []).append(group)
    keys = {first: _distinguishing(own) for first, own in alike.items()}
    names = [_name(group, keys[_first(group)]) for group in groups]
    taken: Counter[str] = Counter()
    for place, name in enumerate(names):
        taken[name.short] += 1
        if taken[name.short] > 1:
            names[place] = name._replace(short=f"{name.short} ({taken[name.short]})")
    return names


def _first(group: dict[str, str]) -> str:
    data = group["data"]
    return f"{group['algorithm']} on {Path(data).stem if data.endswith('.npz') else data}"


def _distinguishing(groups: Sequence[dict[str, str]]) -> list[str]:
    """The settings in which these groups differ, those with the most distinct values first."""

    def kinds(names: Sequence[str]) -> int:
        return len({tuple(group.get(name) for name in names) for group in groups})

    known = dict.fromkeys(name for group in groups for name in group)
    varied = [name for name in known if name != "averagers" and kinds([name]) > 1]
    varied.sort(key=lambda name: -kinds([name]))
    if kinds(varied) < len(groups):  # averagers only if needed: headings show them
        varied.append("averagers")
    needed: list[str] = []
    for name in varied:
        needed += [name] if kinds([*needed, name]) > kinds(needed) else []
    return [*needed, *(name for name in varied if name not in needed)]


def _name(group: dict[str, str], keys: Sequence[str]) -> Name:
    parts = [f"{name}={group[name]}" for name in keys if name in group]
    whole = ", ".join([_first(group), *parts])
    if len(whole) <= LIMIT:
        return Name(whole, whole)
    cut = whole[: LIMIT - 1]
    return Name(f"{cut[: cut.rfind(', ')] if ', ' in cut else cut} …", whole)

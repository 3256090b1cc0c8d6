"""The table of runs that are in no sheet: those that differ in nothing but the seed are one row."""

from __future__ import annotations

from collections.abc import Sequence

from wima.core.last import last_rounds
from wima.experiments.sheet import Sheet
from wima.report.gather import Omitted, Trace
from wima.report.measure import Measure
from wima.report.tables import Members, Table, make_table
from wima.runs.settings import NOT_IN_RESULTS, Choice, Settings

NAME = "runs"
APART = {"seed", *NOT_IN_RESULTS}  # what runs of one row may differ in


def runs_table(runs: Sequence[Trace], measure: Measure) -> tuple[Table, list[Omitted]]:
    """A row per group of runs, a heading per model; and the runs that repeat another one."""
    groups: dict[tuple[tuple[str, str], ...], dict[int, Trace]] = {}
    repeats = []
    for run in sorted(runs, key=_best_first):
        group = groups.setdefault(tuple(_facts(run.settings).items()), {})
        first = group.setdefault(run.settings.seed, run)
        if first is not run:
            repeats.append(Omitted(str(run.path), f"the same settings and seed as {first.path}"))
    facts = [dict(key) for key in sorted(groups)]
    rows = dict(zip(_labels(facts), sorted(groups), strict=True))
    headings = list(dict.fromkeys(m for run in runs for m in run.curves)) or ["plain"]
    headings.sort(key=lambda heading: heading != "plain")
    places = {(row, ""): _members(groups[key]) for row, key in rows.items()}
    shortest = min((run.settings.rounds for run in runs), default=1)
    last = measure.last or last_rounds(shortest)
    title = "Runs" if len(rows) > 1 else f"Runs of {next(iter(rows))}"
    sheet = Sheet(NAME, title, "", "table", "", "", "", last, list(rows), [""], headings, [])
    return make_table(sheet, places, last, measure), repeats


def _best_first(run: Trace) -> tuple[bool, int, str]:
    """Of runs with the same settings and seed, the one that came furthest is shown."""
    return run.state != "done", -run.done, str(run.path)


def _members(seeds: dict[int, Trace]) -> Members:
    models = dict.fromkeys(model for run in seeds.values() for model in run.curves) or ["plain"]
    return {model: {seed: (run, model) for seed, run in seeds.items()} for model in models}


def _facts(settings: Settings) -> dict[str, str]:
    """The settings that make a group, as short texts."""
    names = [name for name in type(settings).model_fields if name not in APART]
    return {name: _text(getattr(settings, name)) for name in names}


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(_text(item) for item in value)
    return str(value) if isinstance(value, Choice) else f"{value}"


def _labels(groups: Sequence[dict[str, str]]) -> list[str]:
    """A name for each group: its algorithm and data, and what else it differs in."""
    varied = [name for name in groups[0] if len({group[name] for group in groups}) > 1]
    named = [name for name in varied if name not in ("algorithm", "data", "averagers")]
    labels = [_label(group, named) for group in groups]
    if len(set(labels)) < len(labels):  # headings show the averagers; only if need be
        labels = [_label(group, [*named, "averagers"]) for group in groups]
    return labels


def _label(group: dict[str, str], named: Sequence[str]) -> str:
    first = f"{group['algorithm']} on {group['data']}"
    return ", ".join([first, *(f"{name}={group[name]}" for name in named)])

"""How the runs of a table differ from the preset of their data set, at the table's scale."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from wima.experiments.plan import scales
from wima.report.tables import PLAIN, Table
from wima.runs.settings import NOT_IN_RESULTS, Settings, change, make_settings, presets, read_table

# Not mentioned: settings that do not change training, and averagers, which headings show.
SILENT = {"seed", "averagers", "eval_every", "eval_last", "eval_batch_size", *NOT_IN_RESULTS}
SILENT |= {"client_eval_every", "client_sample", "calibration", "finetune"}
NAMED = {"algorithm", "server", "schedule", "data", "alpha"}  # by the rows and columns of a scale
PLACES = 4  # how many are listed


def differences(table: Table) -> str:
    """A sentence such as `Differs from the preset cifar10 at scale cpu: batch_size = 20.`"""
    places = list(_places(table))
    if not places:
        return ""
    bases = dict.fromkeys(preset for _, preset, _ in places)
    changed: dict[str, list[str]] = {}
    for place, _, own in places:
        for name, value in own.items():
            changed.setdefault(f"{name} = {value}", []).append(place)
    texts = [
        text + ("" if len(where) == len(places) else f" ({_listed(where)})")
        for text, where in changed.items()
    ]
    scale = f" at scale {table.sheet.scale}" if table.sheet.scale else ""
    preset = f"the preset{'s' * (len(bases) > 1)} {', '.join(bases)}{scale}"
    return f"Differs from {preset}: {'; '.join(texts)}." if texts else ""


def _places(table: Table) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each place with a run on a known data set: its name, preset, and what differs."""
    one_column = len(table.sheet.columns) == 1
    for entry in table.entries.values():
        runs = [member.run for member in entry.members if member.run is not None]
        if entry.heading != PLAIN or not runs:
            continue
        found = _nearest(runs[0].settings, table.sheet.scale)
        if found is not None:
            preset, own = found
            place = entry.row if one_column else f"{entry.row} on {entry.column}"
            kept = {n: v for n, v in own.items() if not _is_named(n, v, entry.row, table)}
            yield place, preset, kept


def _is_named(name: str, value: Any, row: str, table: Table) -> bool:
    """Whether the names in the table already say it."""
    if table.sheet.scale and (name in NAMED or f"{value} {name.split('_')[0]}" in row):
        return True  # "15 clients" is clients_per_round = 15
    whole = table.long.get(row, row)
    return f"{name}=" in whole or (not table.sheet.cells and name in ("algorithm", "data"))


def _nearest(settings: Settings, scale: str) -> tuple[str, dict[str, Any]] | None:
    """The preset for that data set with the fewest differences, and these differences."""
    found = []
    for name in presets():
        base = _base(name, scale)
        if base.data.name == settings.data.name:
            fields = (field for field in type(settings).model_fields if field not in SILENT)
            pairs = {f: (getattr(settings, f), getattr(base, f)) for f in fields}
            own = {f: mine for f, (mine, its) in pairs.items() if mine != its and mine is not None}
            found.append((len(own), name != settings.data.name, name, own))
    return min(found)[2:] if found else None


@cache
def _base(preset: str, scale: str) -> Settings:
    table = read_table(preset)
    if scale in scales():
        layers = (scales()[scale].set, scales()[scale].presets.get(preset, {}))
        for key, value in (pair for layer in layers for pair in layer.items()):
            change(table, key, value)
    return make_settings(table)


def _listed(places: list[str]) -> str:
    more = len(places) - PLACES
    return ", ".join(places[:PLACES]) + (f" and {more} more" if more > 0 else "")

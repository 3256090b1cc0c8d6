"""Notes for the reader of a table, one sentence each."""

import re
from functools import cache
from math import isnan
from typing import Any

from wima.core.measure import PLAIN
from wima.core.statistics import LEAST, RISK
from wima.experiments.plan import scales
from wima.report.table import Table, common_seeds
from wima.runs.settings import NOT_IN_RESULTS, Settings, change, make_settings, presets, read_table

# Not mentioned: settings that do not change training, and averagers, which headings show.
SILENT = {"seed", "averagers", "eval_every", "eval_last", "eval_batch_size", *NOT_IN_RESULTS}
SILENT |= {"client_eval_every", "client_sample", "calibration", "finetune"}
NAMED = {"algorithm", "server", "schedule", "data", "alpha"}  # by the rows and columns of a scale
LISTED = 4  # places


def notes(table: Table) -> list[str]:
    """All notes on a table, the command last."""
    sheet = table.sheet
    lines = [level_note(table)]
    where = next((e.printed.where for e in table.entries.values() if e.printed), "")
    if where:
        lines.append(f"In parentheses: the paper's number ({where}), and ours minus the paper's.")
    lines += [*gain_notes(table), *bytes_notes(table)]
    lines += [*settings_notes(table), *_privacy_notes(table)]
    lines += [f"{row}: {whole}." for row, whole in table.long.items()]
    lines += [sheet.note] if sheet.note else []
    return lines + ([f"Command: {sheet.command}"] if sheet.command else [])


def level_note(table: Table) -> str:
    """The rounds and seeds that a number is averaged over."""
    mean = f"{table.measure.title.capitalize()}: mean over the last {table.last} rounds"
    seeds = common_seeds(table)
    return f"{mean}; {seeds}." if seeds == "1 seed" else f"{mean}, then over {seeds or 'seeds'}."


def gain_notes(table: Table) -> list[str]:
    """How to read the intervals of a table."""
    shown = [gain for gain in table.gains if not isnan(gain.half)]
    lines = ["Gain: over plain, paired, with its 95 % interval."] if table.gains else []
    if any(gain.basis == "rounds" for gain in shown):
        lines.append(
            "* One seed: the interval is from the rounds of that run, widened for their "
            "correlation. It says nothing about other seeds."
        )
    if len(shown) < len(table.gains):
        lines.append(f"No interval: one seed, and fewer than {LEAST} evaluations in these rounds.")
    return [*lines, holm_note(len(shown))] if shown else lines


def holm_note(intervals: int) -> str:
    """How to interpret this many intervals together."""
    return (
        f"Intervals: {intervals}, of which {RISK * intervals:.2g} would exclude zero by chance if "
        "there were no gains. † Still excludes zero after Holm's correction for their number."
    )


def bytes_notes(table: Table) -> list[str]:
    """What MB to the target means, and why some are missing; empty if no run recorded them."""
    recorded = [("", "bytes") in r.curves for r in table.runs() if r.done]
    if table.measure.target is None or not any(recorded):
        return []
    older = "" if all(recorded) else " Older runs did not record them."
    return [f"MB: millions of bytes sent to and from clients until that round.{older}"]


def settings_notes(table: Table) -> list[str]:
    """The windows that headings do not name, and what differs from the presets."""
    windows: dict[str, list[str]] = {}
    for heading in table.sheet.headings:
        entries = [e for e in table.entries.values() if e.heading == heading]
        models = {member.model for entry in entries for member in entry.members}
        wima = re.fullmatch(r"wima(\d+)(-[a-z]+)?", models.pop()) if len(models) == 1 else None
        if wima and heading not in (PLAIN, wima[0]) and "W = " not in heading:
            windows.setdefault(wima[1], []).append(heading)
    lines = [f"{', '.join(names)}: W = {window}." for window, names in windows.items()]
    return [*lines, *filter(None, [differences(table)])]


def _privacy_notes(table: Table) -> list[str]:
    """The privacy budget that the runs of each column have spent, if they are private."""
    spent: dict[str, dict[str, str]] = {}
    for entry in table.entries.values():
        for member in entry.members:
            budget = member.run.numbers("", ["epsilon"]) if member.run else []
            for epsilon in budget:
                shown = "∞" if isnan(epsilon) else f"{epsilon:.3g}"
                spent.setdefault(entry.column, {})[entry.row] = shown
    return [
        f"ε after the last round, {column}: {', '.join(f'{row}: {e}' for row, e in rows.items())}."
        for column, rows in spent.items()
    ]


def differences(table: Table) -> str:
    """How the runs differ from the preset of their data set, at the table's scale.

    A sentence such as `Differs from the preset cifar10 at scale cpu: batch_size = 20.`
    """
    scale, one_column = table.sheet.scale, len(table.sheet.columns) == 1
    places: list[str] = []  # with a run on a known data set
    bases: dict[str, None] = {}
    changed: dict[str, list[str]] = {}

    def is_named(name: str, value: Any, row: str) -> bool:
        """Whether the names in the table already say it."""
        if scale and (name in NAMED or f"{value} {name.split('_')[0]}" in row):
            return True  # "15 clients" is clients_per_round = 15
        known = not table.sheet.cells and name in ("algorithm", "data")
        return known or f"{name}=" in table.long.get(row, row)

    for entry in table.entries.values():
        runs = [member.run for member in entry.members if member.run is not None]
        nearest = _nearest(runs[0].settings, scale) if runs and entry.heading == PLAIN else None
        if nearest is not None:
            preset, values = nearest
            bases[preset] = None
            places.append(entry.row if one_column else f"{entry.row} on {entry.column}")
            for name, value in values.items():
                if not is_named(name, value, entry.row):
                    changed.setdefault(f"{name} = {value}", []).append(places[-1])
    texts = []
    for text, where in changed.items():
        more = f" and {len(where) - LISTED} more" if len(where) > LISTED else ""
        listed = "" if len(where) == len(places) else f" ({', '.join(where[:LISTED])}{more})"
        texts.append(text + listed)
    preset = f"the preset{'s' * (len(bases) > 1)} {', '.join(bases)}"
    at = f" at scale {scale}" if scale else ""
    return f"Differs from {preset}{at}: {'; '.join(texts)}." if texts else ""


def _nearest(settings: Settings, scale: str) -> tuple[str, dict[str, Any]] | None:
    """The preset for that data set with the fewest differences, and these differences."""
    candidates = []
    for name in presets():
        base = _base(name, scale)
        if base.data.name == settings.data.name:
            fields = (field for field in type(settings).model_fields if field not in SILENT)
            pairs = {f: (getattr(settings, f), getattr(base, f)) for f in fields}
            own = {f: mine for f, (mine, its) in pairs.items() if mine != its and mine is not None}
            candidates.append((len(own), name != settings.data.name, name, own))
    return min(candidates)[2:] if candidates else None


@cache
def _base(preset: str, scale: str) -> Settings:
    table = read_table(preset)
    if scale in scales():
        layers = (scales()[scale].set, scales()[scale].presets.get(preset, {}))
        for key, value in (pair for layer in layers for pair in layer.items()):
            change(table, key, value)
    return make_settings(table)

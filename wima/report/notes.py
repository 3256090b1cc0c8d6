"""Notes for the reader of a table, one sentence each."""

from __future__ import annotations

import re
from math import isnan

from wima.core.statistics import LEAST, RISK
from wima.report.differences import differences
from wima.report.grid import common_seeds
from wima.report.measure import Measure
from wima.report.regret import NOTES
from wima.report.tables import PLAIN, Table


def notes(table: Table, measure: Measure) -> list[str]:
    """All notes on a table, the command last."""
    sheet = table.sheet
    if sheet.kind == "regret":
        lines = [f"{measure.title.capitalize()}.", *NOTES]
    else:
        lines = [level_note(table, measure)]
        where = next((e.printed.where for e in table.entries.values() if e.printed), "")
        if where:
            lines.append(
                f"In parentheses: the paper's number ({where}), and ours minus the paper's."
            )
        lines += [*gain_notes(table), *bytes_notes(table, measure)]
    lines += [
        *settings_notes(table),
        *privacy_notes(table),
        *(f"{row}: {whole}." for row, whole in table.long.items()),
    ]
    lines += [sheet.note] if sheet.note else []
    return lines + ([f"Command: {sheet.command}"] if sheet.command else [])


def level_note(table: Table, measure: Measure) -> str:
    """The rounds and seeds that a number is averaged over."""
    mean = f"{measure.title.capitalize()}: mean over the last {table.last} rounds"
    seeds = common_seeds(table)
    return f"{mean}; {seeds}." if seeds == "1 seed" else f"{mean}, then over {seeds or 'seeds'}."


def settings_notes(table: Table) -> list[str]:
    """The windows that headings do not name, and what differs from the presets."""
    windows: dict[str, list[str]] = {}
    for heading in table.sheet.headings:
        entries = [e for e in table.entries.values() if e.heading == heading]
        models = {member.model for entry in entries for member in entry.members}
        found = re.fullmatch(r"wima(\d+)(-[a-z]+)?", models.pop()) if len(models) == 1 else None
        if found and heading not in (PLAIN, found[0]) and "W = " not in heading:
            windows.setdefault(found[1], []).append(heading)
    named = [f"{', '.join(own)}: W = {window}." for window, own in windows.items()]
    return [*named, *filter(None, [differences(table)])]


def privacy_notes(table: Table) -> list[str]:
    """The privacy budget that the runs of each column have spent, if they are private."""
    spent: dict[str, dict[str, str]] = {}
    for entry in table.entries.values():
        for run in (member.run for member in entry.members if member.run is not None):
            if "privacy" in run.extras.newest:
                epsilon = run.extras.newest["privacy"][1].get("epsilon")
                shown = "∞" if epsilon is None else f"{epsilon:.3g}"
                spent.setdefault(entry.column, {})[entry.row] = shown
    return [
        f"ε after the last round, {column}: {', '.join(f'{row}: {e}' for row, e in rows.items())}."
        for column, rows in spent.items()
    ]


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
    if shown:
        lines.append(holm_note(len(shown)))
    return lines


def holm_note(intervals: int) -> str:
    """How to interpret this many intervals together."""
    return (
        f"Intervals: {intervals}, of which {RISK * intervals:.2g} would exclude zero by chance if "
        "there were no gains. † Still excludes zero after Holm's correction for their number."
    )


def bytes_notes(table: Table, measure: Measure) -> list[str]:
    """What MB to the target means, and why some are missing; empty if no run recorded them."""
    if measure.target is None or not any(run.extras.sent for run in table.runs()):
        return []
    older = not all(run.extras.sent for run in table.runs() if run.done)
    told = "MB: millions of bytes sent to and from clients until that round."
    return [told + (" Older runs did not record them." if older else "")]

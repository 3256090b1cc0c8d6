"""A table as Markdown, LaTeX and CSV, and every number as one line of CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import Any, NamedTuple

from wima.core.statistics import LEAST, RISK
from wima.core.text import in_spreadsheet
from wima.report.escaping import in_latex as _tex, in_markdown as _md
from wima.report.gather import Omitted
from wima.report.measure import Measure
from wima.report.regret import NOTES, regret_lines
from wima.report.tables import PLAIN, Entry, Table

DATA = ["sheet", "row", "column", "heading", "seed", "run", "model", "state"]
DATA += ["rounds_done", "rounds", "mean", "deviation", "jump", "forgetting", "reached"]
DATA += ["evaluations", "seeds", "gain", "gain_half", "gain_basis", "gain_size"]
DATA += ["gain_p", "gain_p_holm", "paper", "where", "remark"]


class Grid(NamedTuple):
    """A table of texts; the first `labels` columns are names, the others numbers."""

    labels: int
    header: list[str]
    lines: list[list[str]]


def grid(table: Table, measure: Measure) -> Grid:
    """Ours, with the paper's number and the difference in parentheses.

    With one column: a line per row.  With several: a line per row and model, as in the paper.
    """
    if table.sheet.kind == "regret":
        return Grid(2, *regret_lines(table, measure))
    return _wide(table, measure) if len(table.sheet.columns) == 1 else _long(table, measure)


def _wide(table: Table, measure: Measure) -> Grid:
    sheet = table.sheet
    column = sheet.columns[0]
    gained = [h for h in sheet.headings if h != PLAIN and PLAIN in sheet.headings]
    names = [n for h in sheet.headings for n in ([h, f"gain of {h}"] if h in gained else [h])]
    lines = []
    for row in sheet.rows:
        entries = {h: table.entry(row, column, h) for h in sheet.headings}
        cells = []
        for heading, entry in entries.items():
            gains = [gain(table, entry, measure)] if heading in gained else []
            cells += [value(entry, measure), *gains]
        lines.append([row, *cells, _seeds(entries.values())])
    return Grid(1, [column, *names, "seeds"], lines)


def _long(table: Table, measure: Measure) -> Grid:
    sheet = table.sheet
    lines = []
    for row in sheet.rows:
        for heading in sheet.headings:
            entries = [table.entry(row, column, heading) for column in sheet.columns]
            if not any(entries):
                continue
            lines.append([row, heading, *(value(e, measure) for e in entries), _seeds(entries)])
            gains = [gain(table, entry, measure) for entry in entries]
            if any(gains):
                lines.append([row, f"gain of {heading}", *gains, ""])
    return Grid(2, ["", "", *sheet.columns, "seeds"], lines)


def value(entry: Entry | None, measure: Measure) -> str:
    """The number of a place, or what stands there instead; the paper's behind it."""
    if entry is None:
        return ""
    ours = entry.text or measure.spread(entry.mean, entry.deviation)
    if entry.printed is None:
        return ours
    paper = entry.printed.value
    if paper is None or isnan(entry.mean):
        return f"{ours} (N/A)" if paper is None else f"{ours} ({paper:.2f})"
    return f"{ours} ({paper:.2f}, {measure.number(entry.mean - paper / 100, signed=True)})"


def gain(table: Table, entry: Entry | None, measure: Measure) -> str:
    """The gain over plain with its interval; the paper's behind it."""
    if entry is None or entry.gain is None:
        return ""
    paper = paper_gain(table, entry)
    behind = "" if paper is None else f" ({measure.number(paper / 100, signed=True)})"
    return measure.interval(entry.gain) + behind


def paper_gain(table: Table, entry: Entry) -> float | None:
    """The difference of the paper's two numbers, in points."""
    plain = table.entry(entry.row, entry.column, PLAIN)
    if entry.heading == PLAIN or plain is None or not (entry.printed and plain.printed):
        return None
    own, base = entry.printed.value, plain.printed.value
    return None if own is None or base is None else own - base


def _seeds(entries: Collection[Entry | None]) -> str:
    """The seeds of a line: one answer if its places agree, else one for each, in order."""
    answers = [entry.basis if entry else "none" for entry in entries]
    filled = {entry.basis for entry in entries if entry}
    return filled.pop() if len(filled) == 1 else " / ".join(answers)


def notes(table: Table, measure: Measure) -> list[str]:
    """What a reader of the table must know, a sentence each."""
    sheet = table.sheet
    if sheet.kind == "regret":
        about = [f"{measure.title.capitalize()}.", *NOTES, sheet.note, f"Command: {sheet.command}"]
        return [line for line in about if line]
    lines = [f"{measure.title.capitalize()}: mean over the last {table.last} rounds, then seeds."]
    entries = table.entries.values()
    if any(entry.printed for entry in entries):
        lines.append(f"In parentheses: the paper's number ({sheet.shown}), and ours minus it.")
    lines += gain_notes(table)
    lines += [sheet.note] if sheet.note else []
    return lines + ([f"Command: {sheet.command}"] if sheet.command else [])


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
        lines.append(
            f"Intervals: {len(shown)}, of which {RISK * len(shown):.2g} would exclude zero by "
            "chance if nothing were gained. † Still excludes zero after Holm's correction for "
            "their number."
        )
    return lines


def markdown_page(
    tables: Sequence[Table], omitted: Sequence[Omitted], measure: Measure, facts: Mapping[str, str]
) -> str:
    """All tables on one Markdown page, with the machines and versions behind them."""
    made = f"Made by `{facts['command']}`, wima {facts['version']}, {facts['made']}."
    parts = [f"# {_md(facts['title'])}", made, *filter(None, [facts.get("notes")])]
    parts += ["#" + markdown(table, measure).rstrip("\n") for table in tables]
    runs = {id(run): run for table in tables for run in table.runs()}.values()
    machines = Counter(_machine(run.environment) for run in runs)
    hours = sum(run.seconds or 0 for run in runs) / 3600
    counted = [f"- {count} runs: {_md(machine)}" for machine, count in machines.most_common()]
    parts += ["## Machines", "\n".join([f"- {hours:.1f} hours of rounds in all", *counted])]
    left = [f"- {_md(item.path)}: {_md(item.reason)}" for item in omitted]
    parts += ["## Left out", "\n".join(left)] if left else []
    return "\n\n".join(parts) + "\n"


def _machine(around: Mapping[str, Any]) -> str:
    keys = ("processor", "cores", "python", "torch", "wima", "code")
    return ", ".join(f"{key} {around[key]}" for key in keys if around.get(key))


def markdown(table: Table, measure: Measure) -> str:
    made = grid(table, measure)
    rule = ["---"] * made.labels + ["---:"] * (len(made.header) - made.labels)
    lines = [made.header, rule, *made.lines]
    body = "\n".join("| " + " | ".join(_md(text) for text in line) + " |" for line in lines)
    listed = "\n".join(f"- {_md(note)}" for note in notes(table, measure))
    return f"# {_md(table.sheet.title)}\n\n{body}\n\n{listed}\n"


def latex(table: Table, measure: Measure) -> str:
    """A table environment for a document that loads booktabs."""
    made = grid(table, measure)
    shape = "l" * made.labels + "r" * (len(made.header) - made.labels)
    body = [" & ".join(_tex(text) for text in line) + r" \\" for line in made.lines]
    caption = " ".join([f"{table.sheet.title}.", *notes(table, measure)])
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{_tex(caption)}}}",
            rf"\begin{{tabular}}{{{shape}}}",
            r"\toprule",
            " & ".join(_tex(text) for text in made.header) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def comma_separated(lines: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    rows = ([_safe(item) for item in line] for line in lines)
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _safe(item: Any) -> Any:
    """Text that no spreadsheet takes for a formula; numbers as they are."""
    return item if isinstance(item, int | float | None) else in_spreadsheet(str(item))


def table_csv(table: Table, measure: Measure) -> str:
    made = grid(table, measure)
    return comma_separated([made.header, *made.lines])


def data_csv(tables: Sequence[Table]) -> str:
    """Every number: a line per seed, and one without a seed for the mean over seeds.

    Values are as recorded (an accuracy is a share), the paper's in percent.
    """
    return comma_separated([DATA, *(line for table in tables for line in _data(table))])


def _data(table: Table) -> Iterator[list[Any]]:
    for entry in table.entries.values():
        place = [table.sheet.name, entry.row, entry.column, entry.heading]
        for member in entry.members:
            run, numbers = member.run, member.score
            facts = (
                [run.path, member.model, run.state, run.done, run.settings.rounds] if run else []
            )
            line = [*place, member.seed, *(facts or ["", member.model, "missing", "", ""])]
            line += list(numbers) if numbers else [""] * 6
            yield [_cell(item) for item in line] + [""] * (len(DATA) - len(line))
        head = [*place, "", "", "", entry.text or "done", "", "", entry.mean, entry.deviation]
        own = list(entry.gain) if entry.gain else [""] * 6
        paper = list(entry.printed) if entry.printed else [""] * 3
        if entry.printed and entry.printed.value is None:
            paper[0] = "N/A"
        yield [_cell(item) for item in [*head, "", "", "", "", entry.seeds, *own, *paper]]


def _cell(item: Any) -> Any:
    """Empty where there is no number."""
    return "" if item is None or (isinstance(item, float) and isnan(item)) else item

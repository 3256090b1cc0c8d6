"""Tables as Markdown, LaTeX and CSV, and every number as a line of CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from wima.core.text import in_spreadsheet
from wima.report.below import below
from wima.report.escaping import in_latex as _tex, in_markdown as _md, markdown_table
from wima.report.gather import Omitted
from wima.report.grid import GAIN, Grid, grid, target_grid
from wima.report.headline import headline
from wima.report.measure import Measure
from wima.report.names import proper
from wima.report.notes import bytes_notes, level_note, notes
from wima.report.section import Section
from wima.report.tables import Table

DATA = ["sheet", "row", "column", "heading", "seed", "run", "model", "state"]
DATA += ["rounds_done", "rounds", "mean", "deviation", "jump", "forgetting", "reached"]
DATA += ["evaluations", "seeds", "gain", "gain_half", "gain_basis", "gain_size"]
DATA += ["gain_p", "gain_p_holm", "paper", "where", "remark"]


def markdown_page(
    tables: Sequence[Table],
    omitted: Sequence[Omitted],
    measure: Measure,
    facts: Mapping[str, Any],
    opening: Sequence[str] = (),
    details: Sequence[str] = (),
) -> str:
    """All tables on one Markdown page, with the machines and versions used.

    opening: follows the headline; details: replaces the tables, if given.
    """
    made = f"Made by `{facts['command']}`, wima {facts['version']}, {facts['made']}."
    parts = [f"# {_md(facts['title'])}", f"**{_md(headline(tables, measure))}**", *opening, made]
    parts += filter(None, [facts.get("notes")])
    parts += details or ["#" + markdown(table, measure).rstrip("\n") for table in tables]
    runs = {id(run): run for table in tables for run in table.runs()}.values()
    machines = Counter(_machine(run.environment) for run in runs)
    hours = sum(run.seconds or 0 for run in runs) / 3600
    counted = [
        f"- {count} run{'s' * (count > 1)}: {_md(machine)}"
        for machine, count in machines.most_common()
    ]
    parts += ["## Machines", "\n".join([f"- {hours:.1f} hours of rounds in total", *counted])]
    left = [f"- {_md(item.path)}: {_md(item.reason)}" for item in omitted]
    parts += ["## Left out", "\n".join(left)] if left else []
    return "\n\n".join(parts) + "\n"


def _machine(around: Mapping[str, Any]) -> str:
    keys = ("processor", "cores", "python", "torch", "wima", "code")
    return ", ".join(f"{key} {around[key]}" for key in keys if around.get(key))


def markdown(table: Table, measure: Measure, told: Sequence[str] | None = None) -> str:
    """A table with its notes, or with the given ones."""
    told = notes(table, measure) if told is None else told
    listed = "\n".join(f"- {_md(note)}" for note in told)
    parts = [f"# {_md(table.sheet.title)}", markdown_table(*grid(table, measure)[:3])]
    target = target_grid(table, measure)
    if target is not None:
        parts += [f"{target_title(table, measure)}:", markdown_table(*target[:3])]
    parts.append(listed)
    for section in below(table):
        notes_below = "\n".join(f"- {_md(note)}" for note in section.notes)
        parts += [f"**{_md(section.title)}**", markdown_table(*section.grid[:3]), notes_below]
    return "\n\n".join(parts) + "\n"


def target_title(table: Table, measure: Measure) -> str:
    assert measure.target is not None
    unit = " %" if measure.is_share else ""
    sent = ", and MB until then" if bytes_notes(table, measure) else ""
    return f"Rounds to a test {measure.metric} of {measure.number(measure.target)}{unit}{sent}"


def latex(table: Table, measure: Measure) -> str:
    """A table environment for a document that loads booktabs; notes and command are comments."""
    made = grid(table, measure)
    target = target_grid(table, measure)
    body = [*_tabular(made), *([] if target is None else [r"\medskip", "", *_tabular(target)])]
    return _environment(notes(table, measure), _caption(table, made, measure), table.slug, body)


def section_latex(table: Table, section: Section) -> str:
    """The same for a section below a table."""
    caption = f"{table.sheet.title}: {section.title.lower()}. {section.notes[0]}"
    if any("†" in text for line in section.grid.lines for text in line):
        caption += " †: excludes zero after Holm's correction."
    name, body = f"{table.slug}-{section.name}", _tabular(section.grid)
    return _environment(section.notes, caption, name, body)


def _environment(comments: Sequence[str], caption: str, label: str, tabulars: Sequence[str]) -> str:
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            *(_comment(comment) for comment in comments),
            r"\begin{table}",
            r"\centering\small",
            rf"\caption{{{_tex(caption)}}}",
            rf"\label{{tab:{label}}}",
            *tabulars,
            r"\end{table}",
            "",
        ]
    )


def _caption(table: Table, made: Grid, measure: Measure) -> str:
    parts = [f"{table.sheet.title}."]
    if table.sheet.kind == "regret":
        return " ".join([*parts, f"{measure.title.capitalize()}."])
    parts.append(level_note(table, measure))
    printed = any(entry.printed for entry in table.entries.values())
    parts += ["In parentheses: the paper's number, and ours minus the paper's."] if printed else []
    parts += ["Bold: the best model in each place."] if made.best else []
    shown = [gain for gain in table.gains if not isnan(gain.half)]
    parts += ["Gain: over plain, with its 95 % interval."] if table.gains else []
    parts += ["*: from a single run."] if any(gain.basis == "rounds" for gain in shown) else []
    marked = any(gain.marked for gain in shown)
    parts += ["†: excludes zero after Holm's correction."] if marked else []
    if measure.target is not None:
        title = target_title(table, measure)
        parts.append(f"Below: {title[0].lower()}{title[1:]}.")
    return " ".join(parts)


def _tabular(made: Grid) -> list[str]:
    """Lines of a tabular; repeated names are left out."""
    shape = "l" * made.labels + "r" * (len(made.header) - made.labels)
    body: list[str] = []
    for number, line in enumerate(made.lines):
        again = made.labels > 1 and number > 0 and made.lines[number - 1][0] == line[0]
        body += [r"\addlinespace"] if made.labels > 1 and number > 0 and not again else []
        names = ["" if again else line[0], *line[1 : made.labels]][: made.labels]
        cells = [_tex(_name(text)) for text in names]
        for column, text in enumerate(line[made.labels :], made.labels):
            cells.append(rf"\textbf{_tex(text)}" if (number, column) in made.best else _tex(text))
        body.append(" & ".join(cells) + r" \\")
    header = " & ".join(_tex(_name(text)) for text in made.header) + r" \\"
    top = [rf"\begin{{tabular}}{{{shape}}}", r"\toprule", header, r"\midrule"]
    return [*top, *body, r"\bottomrule", r"\end{tabular}"]


def _name(text: str) -> str:
    return "gain" if text.startswith(GAIN) else proper(text)


def _comment(text: str) -> str:
    """A line that LaTeX ignores."""
    return "% " + " ".join(text.split()).encode("ascii", "backslashreplace").decode()


def comma_separated(lines: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    rows = ([_safe(item) for item in line] for line in lines)
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _safe(item: Any) -> Any:
    """Text that no spreadsheet takes for a formula; numbers are unchanged."""
    return item if isinstance(item, int | float | None) else in_spreadsheet(str(item))


def table_csv(table: Table, measure: Measure) -> str:
    return grid_csv(grid(table, measure))


def grid_csv(made: Grid) -> str:
    return comma_separated([made.header, *made.lines])


def data_csv(tables: Sequence[Table]) -> str:
    """Every number: a line per seed, and one without a seed for the mean over seeds.

    Values are as recorded (an accuracy is a fraction), the paper's are in percent.  The last column
    has the bytes to the target, if any run has them.
    """
    made = [DATA, *(line for table in tables for line in _data(table))]
    sent = ["reached_bytes", *(_cell(count) for table in tables for count in _sent(table))]
    if any(sent[1:]):
        made = [[*line, count] for line, count in zip(made, sent, strict=True)]
    return comma_separated(made)


def _sent(table: Table) -> Iterator[float | None]:
    """The bytes to the target, for each line of `_data`."""
    for entry in table.entries.values():
        yield from (member.sent for member in entry.members)
        yield entry.sent


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

"""Tables as Markdown, LaTeX and CSV, and every number as a line of CSV."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from wima.core.text import in_spreadsheet
from wima.report.names import proper
from wima.report.notes import Section, below, bytes_notes, level_note, notes
from wima.report.table import GAIN, Entry, Grid, Table, grid, target_grid

DATA = ["sheet", "row", "column", "heading", "seed", "run", "model", "state"]
DATA += ["rounds_done", "rounds", "mean", "deviation", "jump", "forgetting", "reached"]
DATA += ["evaluations", "seeds", "gain", "gain_half", "gain_basis", "gain_size"]
DATA += ["gain_p", "gain_p_holm", "paper", "where", "remark"]
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?")
SPECIAL = {char: "\\" + char for char in "&%$#_{}"}
SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {"±": r"$\pm$", "α": r"$\alpha$", "−": "$-$", "<": "$<$", ">": "$>$", '"': "''"}
SPECIAL |= {"†": r"$\dagger$", "≤": r"$\le$"}


def write(path: Path, text: str) -> None:
    """Write text; file names in it may be invalid Unicode, which is written as escapes."""
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


# Markdown


def in_markdown(text: str) -> str:
    """Text for Markdown, on one line; the rule under a table's header is unchanged."""
    if set(text) <= set("-:"):
        return text
    return re.sub(r"([\\`*_<>\[\]|&#])", r"\\\1", " ".join(text.split()))


def markdown_list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {in_markdown(line)}" for line in lines)


def markdown_table(table: Grid, bold: bool = False) -> str:
    """A Markdown table.  bold: whether the best of each place is marked."""
    strong = set(table.best) if bold else set()
    rule = ["---"] * table.labels + ["---:"] * (len(table.header) - table.labels)
    rows = [[in_markdown(text) for text in table.header], rule]
    for number, line in enumerate(table.lines):
        cells = [in_markdown(text) for text in line]
        rows.append([f"**{c}**" if (number, i) in strong else c for i, c in enumerate(cells)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def markdown(table: Table, lines: Sequence[str] | None = None) -> str:
    """A table with its notes, or with the given ones."""
    parts = [f"# {in_markdown(table.sheet.title)}", markdown_table(grid(table))]
    target = target_grid(table)
    if target is not None:
        parts += [f"{_target_title(table)}:", markdown_table(target)]
    parts.append(markdown_list(notes(table) if lines is None else lines))
    for section in below(table):
        parts += [f"**{in_markdown(section.title)}**", markdown_table(section.grid)]
        parts.append(markdown_list(section.notes))
    return "\n\n".join(parts) + "\n"


def _target_title(table: Table) -> str:
    measure = table.measure
    assert measure.target is not None
    unit = " %" if measure.is_share else ""
    sent = ", and MB until then" if bytes_notes(table) else ""
    return f"Rounds to a test {measure.metric} of {measure.number(measure.target)}{unit}{sent}"


# LaTeX


def in_latex(text: str) -> str:
    """Text for LaTeX; characters that pdflatex may not know become a question mark."""
    known = (SPECIAL.get(c, c if " " <= c <= "~" or "\xa0" < c <= "ÿ" else "?") for c in text)
    return "{" + "".join(known) + "}"


def latex(table: Table) -> str:
    """A table environment for a document that loads booktabs; notes and command are comments."""
    rows, target = grid(table), target_grid(table)
    parts = [f"{table.sheet.title}.", level_note(table)]
    if any(entry.printed for entry in table.entries.values()):
        parts.append("In parentheses: the paper's number, and ours minus the paper's.")
    parts += ["Bold: the best model in each place."] if rows.best else []
    parts += ["Gain: over plain, with its 95 % interval."] if table.gains else []
    shown = table.intervals
    parts += ["*: from a single run."] if any(gain.basis == "rounds" for gain in shown) else []
    if any(gain.marked for gain in shown):
        parts.append("†: excludes zero after Holm's correction.")
    body = tabular(rows)
    if target is not None:
        title = _target_title(table)
        parts.append(f"Below: {title[0].lower()}{title[1:]}.")
        body += [r"\medskip", "", *tabular(target)]
    comments = [r"\usepackage{booktabs}", *notes(table)]
    return environment(comments, " ".join(parts), body, table.slug)


def section_latex(table: Table, section: Section) -> str:
    """The same for a section below a table."""
    caption = f"{table.sheet.title}: {section.title.lower()}. {section.notes[0]}"
    if any("†" in text for line in section.grid.lines for text in line):
        caption += " †: excludes zero after Holm's correction."
    comments = [r"\usepackage{booktabs}", *section.notes]
    body = tabular(section.grid)
    return environment(comments, caption, body, f"{table.slug}-{section.name}")


def environment(comments: Iterable[str], caption: str, body: Sequence[str], label: str = "") -> str:
    """A floating table around its body, after comments, which LaTeX ignores."""
    lines = [" ".join(text.split()).encode("ascii", "backslashreplace") for text in comments]
    top = [*(f"% {line.decode()}" for line in lines), r"\begin{table}", r"\centering\small"]
    top += [rf"\caption{{{in_latex(caption)}}}", *([rf"\label{{tab:{label}}}"] if label else [])]
    return "\n".join([*top, *body, r"\end{table}", ""])


def tabular(table: Grid, papers: bool = True) -> list[str]:
    """Lines of a tabular with the best in bold.

    papers: use the names that papers print, leave out a name that comes again, and add space
    between rows.
    """

    def name(text: str) -> str:
        shown = "gain" if text.startswith(GAIN) else proper(text)
        return in_latex(shown if papers else text)

    body: list[str] = []
    for number, line in enumerate(table.lines):
        several = papers and table.labels > 1 and number > 0
        again = several and table.lines[number - 1][0] == line[0]
        body += [r"\addlinespace"] if several and not again else []
        cells = [name("" if again else line[0]), *map(name, line[1 : table.labels])]
        for column, text in enumerate(line[table.labels :], table.labels):
            best = (number, column) in table.best
            cells.append(rf"\textbf{in_latex(text)}" if best else in_latex(text))
        body.append(" & ".join(cells) + r" \\")
    shape = "l" * table.labels + "r" * (len(table.header) - table.labels)
    header = " & ".join(map(name, table.header)) + r" \\"
    top = [rf"\begin{{tabular}}{{{shape}}}", r"\toprule", header, r"\midrule"]
    return [*top, *body, r"\bottomrule", r"\end{tabular}"]


# CSV


def csv_text(header: Sequence[str], lines: Iterable[Sequence[Any] | Mapping[str, Any]]) -> str:
    """CSV of lines or of records: text in quotes, and nothing where there is no number."""

    def cell(item: Any) -> str:
        text = "" if item is None or (isinstance(item, float) and isnan(item)) else str(item)
        if not text or NUMBER.fullmatch(text):
            return text
        return '"' + in_spreadsheet(text).replace('"', '""') + '"'

    rows = (map(x.get, header) if isinstance(x, Mapping) else x for x in (header, *lines))
    return "".join(",".join(map(cell, row)) + "\n" for row in rows)


def data_csv(tables: Sequence[Table]) -> str:
    """Every number: a line per seed, and one without a seed for the mean over seeds.

    Values are as recorded (an accuracy is a fraction), the paper's are in percent.  The last column
    has the bytes to the target, if any run has them.
    """
    lines = [line for table in tables for line in _data(table)]
    sent = any(line["reached_bytes"] is not None for line in lines)
    return csv_text([*DATA, "reached_bytes"] if sent else DATA, lines)


def _data(table: Table) -> Iterator[dict[str, Any]]:
    for entry in table.entries.values():
        place = {"sheet": table.sheet.name, **dict(zip(DATA[1:4], entry.place, strict=True))}
        yield from ({**place, **line} for line in member_data(entry))
        line = {**place, "state": entry.text or "done", "mean": entry.mean}
        line |= {"deviation": entry.deviation, "seeds": entry.seeds}
        if entry.gain is not None:
            gain = ["gain", "gain_half", "gain_basis", "gain_size", "gain_p", "gain_p_holm"]
            line |= dict(zip(gain, entry.gain, strict=True))
        if entry.printed is not None:
            paper = "N/A" if entry.printed.value is None else entry.printed.value
            line |= {**entry.printed._asdict(), "paper": paper}
        yield {**line, "reached_bytes": None if isnan(entry.sent) else entry.sent}


def member_data(entry: Entry) -> Iterator[dict[str, Any]]:
    """Every number of each seed, as recorded."""
    for member in entry.members:
        run = member.run
        line = {"seed": member.seed, "model": member.model, "state": "missing"}
        if run is not None:
            line |= {"run": run.path, "state": run.state}
            line |= {"rounds_done": run.done, "rounds": run.settings.rounds}
        line |= member.score._asdict() if member.score else {}
        yield {**line, "reached_bytes": member.sent}

"""A comparison as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from typing import Any, NamedTuple

import numpy as np

from wima.core.statistics import RISK
from wima.core.version import __version__
from wima.report.comparison.methods import also_differ
from wima.report.comparison.paired import Comparison, Row
from wima.report.escaping import in_latex, in_markdown
from wima.report.measure import megabytes
from wima.report.texts import comma_separated

DATA = ["method", "model", "seed", "run", "state", "rounds_done", "rounds", "mean", "deviation"]
DATA += ["reached", "seeds", "pairs", "difference", "low", "high", "p", "p_holm", "won", "lost"]
BASELINE = "baseline"
MEGABYTES = " MB: millions of bytes sent to and from clients until then."
OLDER = " Older runs did not record them."
MODEL, SEEDS, P, HOLM, WON = 1, 3, 5, 6, 7  # places in the header


class Cell(NamedTuple):
    """A cell of the table."""

    text: str
    best: bool = False  # whether it is the best of its column


def header(comparison: Comparison) -> list[str]:
    difference = "difference [95 %]" if comparison.tests else "difference"
    names = ["method", "model", comparison.measure.title, "seeds", difference]
    names += ["p", "Holm's p", "won:lost"]
    measure = comparison.measure
    if measure.target is None:
        return names
    unit = " %" if measure.is_share else ""
    names.append(f"rounds to {measure.factor * measure.target:g}{unit}")
    return [*names, "MB sent"] if comparison.sent else names


def lines(comparison: Comparison) -> list[list[Cell]]:
    """A line per row, with the columns of `header`."""
    speeds = {id(row): _rounds(row) for row in comparison.rows}
    fastest = min((mean for mean, _ in speeds.values() if not isnan(mean)), default=None)
    cheapest = min((row.sent for row in comparison.rows if not isnan(row.sent)), default=None)
    best, greatest = comparison.best, comparison.greatest
    made = []
    for row in comparison.rows:
        cells = [Cell(row.method.name), Cell(row.model)]
        cells += [Cell(_level(row, comparison), row is best), Cell(seeds(row))]
        cells += _difference(row, comparison, row is greatest)
        if comparison.measure.target is not None:
            mean, text = speeds[id(row)]
            cells.append(Cell(text, mean == fastest))
        if comparison.sent:
            cells.append(Cell(megabytes(row.sent), row.sent == cheapest))
        made.append(cells)
    return made


def _level(row: Row, comparison: Comparison) -> str:
    """Mean and deviation over seeds, or the text shown instead."""
    if row.diverged:
        return "N/A"
    if row.means:
        return comparison.measure.spread(*row.level)
    return max((m.run for m in row.members if m.run), key=lambda run: run.done).progress


def seeds(row: Row) -> str:
    """The number of finished seeds, and of all if that differs."""
    done, all_ = len(row.means), len(row.members)
    return f"{done}" if done == all_ else f"{done} of {all_}"


def same_seeds(comparison: Comparison) -> bool:
    """Whether all rows have the same number of seeds, which the caption then states."""
    return len({seeds(row) for row in comparison.rows}) == 1


def _difference(row: Row, comparison: Comparison, greatest: bool) -> list[Cell]:
    """The difference with its interval, both p-values, and seeds won and lost."""
    found = row.difference
    if found is None:
        return [Cell(BASELINE if row is comparison.baseline else ""), *[Cell("")] * 3]
    interval = Cell(comparison.measure.interval(found), greatest)
    ps = [Cell(_p(found.p)), Cell(_p(found.holm))]
    return [interval, *ps, Cell(f"{row.won}:{row.lost}")]


def _p(p: float) -> str:
    return "" if isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def _rounds(row: Row) -> tuple[float, str]:
    """Mean rounds to the target; NaN unless every seed reaches it."""
    if row.diverged or not row.means:
        return float("nan"), ""
    if len(row.reached) < len(row.means):
        return float("nan"), f"{len(row.reached)} of {len(row.means)} seeds"
    mean = float(np.mean(row.reached))
    return mean, f"{mean:.0f}"


def caption(comparison: Comparison) -> list[str]:
    """How to read the table, as a list of sentences."""
    measure, base = comparison.measure, comparison.baseline
    counts = {len(row.means) for row in comparison.rows if row.means}
    number = f"{counts.pop()} " if len(counts) == 1 else ""
    spread = " of one seed" if number == "1 " else f", ± standard deviation over {number}seeds"
    last = f"mean over the last {comparison.last} rounds{spread}"
    said = [f"{measure.title.capitalize()}: {last}."]
    if comparison.sent:
        said[0] += MEGABYTES + (OLDER if _older(comparison) else "")
    pairs = [row.difference.size for row in comparison.rows if row.difference]
    if not pairs:
        return said
    said.append(f"Difference from {base.name}, paired by seed")
    if comparison.tests:
        said[1] += f", with Student's 95 % interval. † p ≤ {RISK:g} after Holm's correction"
        said[1] += f" for {comparison.tests} comparisons" if comparison.tests > 1 else ""
    said[1] += "."
    if 1 in pairs:
        said.append("One shared seed: no interval. One seed says nothing about others.")
    return said


def _older(comparison: Comparison) -> bool:
    """Whether a row whose seeds all reach the target lacks the bytes sent."""
    return any(not isnan(_rounds(row)[0]) and isnan(row.sent) for row in comparison.rows)


def warnings(comparison: Comparison) -> list[str]:
    """What a reader must know about these runs, as a list of sentences."""
    return [*_unfair(comparison), *_unpaired(comparison), *_unused(comparison)]


def _unfair(comparison: Comparison) -> Iterator[str]:
    """Other settings in which methods differ; methods with the same difference share a sentence."""
    base = comparison.baseline.method
    alike: dict[str, list[str]] = {}
    for method in {row.method.name: row.method for row in comparison.rows}.values():
        keys = also_differ(method, base, comparison.by)
        told = ", ".join(f"{key} ({method.facts[key]}, not {base.facts[key]})" for key in keys)
        alike.setdefault(told, []).append(method.name)
    for told, names in alike.items():
        if told:
            them = "; ".join(names)
            yield f"Not a fair comparison: these and {base.name} also differ in {told}: {them}."


def _unpaired(comparison: Comparison) -> Iterator[str]:
    base = comparison.baseline
    if base.diverged or not base.means:
        yield f"The baseline {base.name} has no number, so there are no differences."
        return
    lacking: dict[str, list[str]] = {}
    for row in comparison.rows:
        extra, missing = (
            sorted(a.means.keys() - b.means.keys()) for a, b in ((row, base), (base, row))
        )
        if extra and not row.diverged:
            told = f"Not paired, as {base.name} lacks them: seeds {_listed(extra)} of"
            lacking.setdefault(told, []).append(row.name)
        if missing and not row.diverged:
            told = f"Not paired: seeds {_listed(missing)} of {base.name}, which are missing in"
            lacking.setdefault(told, []).append(row.name)
    yield from (f"{told} {'; '.join(names)}." for told, names in lacking.items())


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _unused(comparison: Comparison) -> Iterator[str]:
    """Runs that diverged or are unfinished, each once."""
    told: dict[str, None] = {}
    for row in comparison.rows:
        for member in row.members:
            assert member.run is not None
            where = f"{row.method.name}, seed {member.seed}, {member.run.progress}: "
            if member.diverged:
                told[f"Diverged: {where}{member.run.path}"] = None
            elif not member.counts:
                done = member.run.state == "done"
                why = "no evaluation in the last rounds" if done else member.run.state
                told[f"Not counted, {why}: {where}{member.run.path}"] = None
    yield from told


def markdown(comparison: Comparison, command: str) -> str:
    names = header(comparison)
    rule = ["---"] * 2 + ["---:"] * (len(names) - 2)
    body = [[_strong(cell) for cell in line] for line in lines(comparison)]
    table = [[in_markdown(name) for name in names], rule, *body]
    rows = "\n".join("| " + " | ".join(line) + " |" for line in table)
    told = [*caption(comparison), "Bold: the best of a column.", *warnings(comparison)]
    left = [f"Left out: {item.path}: {item.reason}" for item in comparison.omitted]
    notes = "\n".join(f"- {in_markdown(note)}" for note in [*told, *left])
    title = f"# Comparison with {in_markdown(comparison.baseline.name)}"
    made = f"Made by `{_one_line(command)}`, wima {__version__}."
    return "\n\n".join([title, made, rows, notes]) + "\n"


def _strong(cell: Cell) -> str:
    text = in_markdown(cell.text)
    return f"**{text}**" if cell.best else text


def _one_line(text: str) -> str:
    return " ".join(text.split())


def latex(comparison: Comparison, command: str) -> str:
    """A table environment for a document that loads booktabs; narrow enough for a paper.

    Constant columns are in the caption or left out, and so are p-values other than Holm's.
    """
    keep = _in_paper(comparison)
    names = [header(comparison)[place] for place in keep]
    shape = "".join("l" if place < 2 else "r" for place in keep)
    body = [[_bold(line[place]) for place in keep] for line in lines(comparison)]
    said = " ".join(caption(comparison))
    remarks = [f"{command} (wima {__version__})", *warnings(comparison), r"\usepackage{booktabs}"]
    table = [[in_latex(name) for name in names], *body]
    top, *rest = (" & ".join(line) + r" \\" for line in table)
    parts = [*(f"% {_ascii(remark)}" for remark in remarks), r"\begin{table}", r"\centering\small"]
    parts += [rf"\caption{{{in_latex(said)}}}", rf"\begin{{tabular}}{{{shape}}}", r"\toprule"]
    parts += [top, r"\midrule", *rest, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(parts)


def _in_paper(comparison: Comparison) -> list[int]:
    """The indices of the columns in a paper's table."""
    unwanted = {SEEDS} if same_seeds(comparison) else set()
    unwanted |= {MODEL} if len(comparison.models) == 1 else set()
    unwanted |= {P, WON} if comparison.tests else {P, HOLM, WON}
    return [place for place in range(len(header(comparison))) if place not in unwanted]


def _bold(cell: Cell) -> str:
    return rf"\textbf{in_latex(cell.text)}" if cell.best else in_latex(cell.text)


def _ascii(text: str) -> str:
    return _one_line(text).encode("ascii", "replace").decode()


def data(comparison: Comparison) -> str:
    """Every number as recorded: a line per seed, and one without a seed for all seeds."""
    more = ["reached_bytes"] if comparison.sent else []
    made: list[Sequence[Any]] = [[*DATA, *more]]
    for row in comparison.rows:
        names = [row.method.name, row.model]
        for member in row.members:
            run, numbers = member.run, member.score
            assert run is not None
            own = [member.seed, str(run.path), run.state, run.done, run.settings.rounds]
            own += [numbers.mean, numbers.deviation, numbers.reached] if numbers else [None] * 3
            made.append(
                [*names, *map(_known, own), *[""] * 9, *(_known(member.sent) for _ in more)]
            )
        sent = [_known(row.sent) for _ in more]
        made.append([*names, *[""] * 5, *map(_known, _over_seeds(row)), *sent])
    return comma_separated(made)


def _over_seeds(row: Row) -> list[Any]:
    """The numbers over all seeds: level, rounds to the target, difference."""
    numbers: list[Any] = [*row.level, _rounds(row)[0], len(row.means)]
    found = row.difference
    if found is None:
        return [*numbers, *[None] * 8]
    ends = (found.mean - found.half, found.mean + found.half)
    return [*numbers, found.size, found.mean, *ends, found.p, found.holm, row.won, row.lost]


def _known(item: Any) -> Any:
    """Empty where there is no number."""
    return "" if item is None or (isinstance(item, float) and isnan(item)) else item

"""`wima compare`: methods and models against one of them, with differences paired by seed.

A comparison is a table with a row per method and a heading per model, in which gains are over a
chosen entry instead of the plain model of the same row.
"""

from collections.abc import Collection, Iterator, Sequence
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wima.core.errors import UsageError, check, unknown
from wima.core.measure import PLAIN, Measure, megabytes
from wima.core.statistics import RISK, last_rounds
from wima.core.version import __version__
from wima.experiments.sheet import own_sheet
from wima.report import text
from wima.report.inputs import COMPARED, Omitted, gather
from wima.report.names import Method, also_differ, by_size, methods_of
from wima.report.statistics import CONSTANT
from wima.report.table import Entry, Grid, Place, Places, Table, make_table, models_of
from wima.storage.files import check_place, written

DATA = ["method", "model", "seed", "run", "state", "rounds_done", "rounds", "mean", "deviation"]
DATA += ["reached", "seeds", "pairs", "difference", "low", "high", "p", "p_holm", "won", "lost"]
MEGABYTES = " MB: millions of bytes sent to and from clients until then."
OLDER = " Older runs did not record them."


class Comparison(NamedTuple):
    """A table with a baseline; all other entries have a gain if they share seeds with it."""

    table: Table
    methods: dict[str, Method]  # by name
    by: list[str]  # the settings that name the methods
    omitted: list[Omitted]

    @property
    def rows(self) -> list[Entry]:
        return [*self.table.entries.values()]

    @property
    def baseline(self) -> Entry:
        assert self.table.baseline is not None
        return self.table.entries[self.table.baseline]

    @property
    def tests(self) -> int:
        """The number of p-values."""
        return len(self.table.intervals)

    def won(self, entry: Entry, sign: int = 1) -> int:
        """The seeds in which an entry is better than the baseline; sign = -1: in which worse."""
        own, base = entry.scores, self.baseline.scores
        differences = (own[seed].mean - base[seed].mean for seed in own if seed in base)
        return sum(sign * self.table.measure.sign * difference > 0 for difference in differences)


def compare(
    paths: Sequence[Path],
    measure: Measure,
    baseline: str | None = None,
    models: Sequence[str] = (),
    by: Sequence[str] = (),
) -> Comparison:
    """Compare the runs at and below these paths, with all models unless some are named."""
    data = gather(paths, measure.metric, "compare")
    runs = [*data.runs.values()]
    measure = measure.directed(run.environment for run in runs)
    methods, chosen = methods_of(runs, by)
    places = {place: seeds for method in methods for place, seeds in _places(method).items()}
    base = _baseline([*places], baseline, models)
    kept = {p: own for p, own in places.items() if p == base or not models or p[2] in models}
    name = f"{base[0]}/{base[2]}"
    check(len(kept) > 1, f"Only {name} was found; a comparison needs at least two.")
    rows, headings = ([*dict.fromkeys(place[part] for place in kept)] for part in (0, 2))
    last = last_rounds(min(run.settings.rounds for run in runs))
    sheet = own_sheet("compare", f"Comparison with {name}", last, rows=rows, headings=headings)
    return Comparison(
        table=make_table(sheet, kept, measure, base),
        methods={method.name: method for method in methods},
        by=chosen,
        omitted=[*data.omitted, *_repeats(methods, places)],
    )


def _places(method: Method) -> Places:
    """The models of a method, plain first; a run that was never evaluated counts for all."""
    places: Places = {}
    for model in sorted(models_of(method.runs), key=lambda name: (name != PLAIN, by_size(name))):
        seeds = places.setdefault((method.name, "", model), {})
        for run in sorted(method.runs, key=lambda run: not run.models):
            if model in run.models or not run.models:
                seeds.setdefault(run.settings.seed, (run, model))
    return places


def _baseline(places: Sequence[Place], name: str | None, models: Sequence[str]) -> Place:
    """The place with that name; for the name of a method, its first that is shown."""
    headings = {heading for *_, heading in places}
    for model in models:
        if model not in headings:
            raise unknown("model", model, headings)
    shown = [place for place in places if not models or place[2] in models]
    if name is None:
        return shown[0]
    names = {f"{row}/{heading}": (row, column, heading) for row, column, heading in places}
    found = [names[name]] if name in names else [place for place in shown if place[0] == name]
    if not found:
        raise unknown("baseline", name, names if "/" in name else {row for row, *_ in places})
    return found[0]


def _repeats(methods: Sequence[Method], places: Places) -> Iterator[Omitted]:
    """Runs whose models all come from another run with the same settings and seed."""
    used = {run.number for seeds in places.values() for run, _ in seeds.values() if run}
    for method in methods:
        first = {run.settings.seed: run.path for run in reversed(method.runs) if run.number in used}
        for run in method.runs:
            if run.number not in used:
                reason = f"the same settings and seed as {first[run.settings.seed]}"
                yield Omitted(str(run.path), reason)


# The table and its notes


def grid(comparison: Comparison, without: Collection[str] = ()) -> Grid:
    """A line per entry; the best of each column is marked.  without: columns to leave out."""
    rows, measure = comparison.rows, comparison.table.measure
    difference = "difference [95 %]" if comparison.tests else "difference"
    target = f"rounds to {measure.factor * (measure.target or 0):g}" + " %" * measure.is_share
    ranked = {  # the more the better
        measure.title: [measure.sign * row.mean for row in rows],
        difference: [max(0, measure.sign * r.gain.mean) or nan if r.gain else nan for r in rows],
        target: [-_speed(row) for row in rows],
        "MB sent": [-_sent(row) for row in rows],
    }
    header = ["method", "model", measure.title, "seeds", difference, "p", "Holm's p", "won:lost"]
    if measure.target is not None:
        header += [target] if all(map(isnan, ranked["MB sent"])) else [target, "MB sent"]
    header = [name for name in header if name not in without]
    lines = []
    for row in rows:
        some = f"{len(row.reached)} of {row.seeds} seeds" if row.seeds else ""
        cells = {
            "method": row.row,
            "model": row.heading,
            measure.title: row.text or measure.spread(row.mean, row.deviation),
            "seeds": _seeds(row),
            difference: "baseline" if row is comparison.baseline else "",
            target: some if isnan(_speed(row)) else f"{_speed(row):.0f}",
            "MB sent": megabytes(_sent(row)),
        }
        if gain := row.gain:
            p, holm = ("<0.001" if p < 0.001 else f"{p:.3f}" for p in (gain.p, gain.holm))
            cells |= {} if isnan(gain.p) else {"p": p, "Holm's p": holm}
            won = f"{comparison.won(row)}:{comparison.won(row, -1)}"
            cells |= {difference: measure.interval(gain), "won:lost": won}
        lines.append([cells.get(name, "") for name in header])
    best = set()
    for column, values in ((i, ranked[name]) for i, name in enumerate(header) if name in ranked):
        most = max((value for value in values if not isnan(value)), default=nan)
        best |= {(n, column) for n, value in enumerate(values) if value == most}
    return Grid(len({"method", "model"} - {*without}), header, lines, best)


def _seeds(row: Entry) -> str:
    """The number of finished seeds, and of all if that differs."""
    done, planned = len(row.scores), len(row.members)
    return f"{done}" if done == planned else f"{done} of {planned}"


def constant_columns(comparison: Comparison) -> set[str]:
    """The columns that the caption states: the number of seeds, or that there are no p-values."""
    alike = len({_seeds(row) for row in comparison.rows}) == 1
    return ({"seeds"} if alike else set()) | (set() if comparison.tests else {"p", "Holm's p"})


def _speed(row: Entry) -> float:
    """Mean rounds to the target; NaN unless every seed reaches it."""
    whole = row.seeds and len(row.reached) == row.seeds
    return float(np.mean(row.reached)) if whole else nan


def _sent(row: Entry) -> float:
    """The mean bytes to the target; NaN unless every seed reaches it and recorded them."""
    return nan if isnan(_speed(row)) else row.sent


def caption(comparison: Comparison) -> list[str]:
    """How to read the table, as a list of sentences."""
    measure, rows, base = comparison.table.measure, comparison.rows, comparison.baseline
    counts = {len(row.scores) for row in rows if row.scores}
    number = f"{counts.pop()} " if len(counts) == 1 else ""
    spread = " of one seed" if number == "1 " else f", ± standard deviation over {number}seeds"
    last = f"mean over the last {comparison.table.last} rounds{spread}"
    lines = [f"{measure.title.capitalize()}: {last}."]
    if any(not isnan(_sent(row)) for row in rows):
        older = any(isnan(_sent(row)) and not isnan(_speed(row)) for row in rows)
        lines[0] += MEGABYTES + (OLDER if older else "")
    pairs = [gain.size for gain in comparison.table.gains]
    if not pairs:
        return lines
    lines.append(f"Difference from {base.name}, paired by seed")
    if comparison.tests:
        lines[1] += f", with Student's 95 % interval. † p ≤ {RISK:g} after Holm's correction"
        lines[1] += f" for {comparison.tests} comparisons" if comparison.tests > 1 else ""
    lines[1] += "."
    if 1 in pairs:
        lines.append("One shared seed: no interval. One seed says nothing about others.")
    lines += [CONSTANT] if any(gain.is_constant for gain in comparison.table.gains) else []
    return lines


def warnings(comparison: Comparison) -> list[str]:
    """What a reader must know about these runs, as a list of sentences."""
    return [*_unfair(comparison), *_unpaired(comparison), *_unused(comparison)]


def _unfair(comparison: Comparison) -> Iterator[str]:
    """Other settings in which methods differ; methods with the same difference share a sentence."""
    base = comparison.methods[comparison.baseline.row]
    alike: dict[str, list[str]] = {}
    for name in comparison.table.sheet.rows:
        method = comparison.methods[name]
        keys = also_differ(method, base, comparison.by)
        words = ", ".join(f"{key} ({method.facts[key]}, not {base.facts[key]})" for key in keys)
        alike.setdefault(words, []).append(name)
    start = f"Not a fair comparison: these and {base.name} also differ in"
    yield from (f"{start} {words}: {'; '.join(names)}." for words, names in alike.items() if words)


def _unpaired(comparison: Comparison) -> Iterator[str]:
    base = comparison.baseline
    if base.diverged or not base.scores:
        yield f"The baseline {base.name} has no number, so there are no differences."
        return
    lacking: dict[str, list[str]] = {}
    for row in comparison.rows:
        extra, missing = row.scores.keys() - base.scores.keys(), base.scores.keys() - row.scores
        for seeds, words in (
            (extra, "Not paired, as {base} lacks them: seeds {seeds} of"),
            (missing, "Not paired: seeds {seeds} of {base}, which are missing in"),
        ):
            if seeds and not row.diverged:
                numbers = ", ".join(map(str, sorted(seeds)))
                line = words.format(base=base.name, seeds=numbers)
                lacking.setdefault(line, []).append(row.name)
    yield from (f"{line} {'; '.join(names)}." for line, names in lacking.items())


def _unused(comparison: Comparison) -> Iterator[str]:
    """Runs that diverged or are unfinished, each once."""
    lines: dict[str, None] = {}
    for row in comparison.rows:
        for one in row.members:
            assert one.run is not None
            where = f"{row.row}, seed {one.seed}, {one.run.progress}: "
            if one.diverged:
                lines[f"Diverged: {where}{one.run.path}"] = None
            elif not one.counts:
                done = one.run.state == "done"
                why = "no evaluation in the last rounds" if done else one.run.state
                lines[f"Not counted, {why}: {where}{one.run.path}"] = None
    yield from lines


# Files


def check_out(out: Path, force: bool) -> None:
    """Raise unless `out` is free, or is a comparison and `force` is set."""
    check_place(out, COMPARED, "comparison", force)


def write_comparison(comparison: Comparison, out: Path, command: str, force: bool = False) -> None:
    """Write compare.md, .tex, .csv, .png and .pdf, either all of them or none."""
    from wima.report.figures import draw_comparison  # imports matplotlib

    check_out(out, force)
    texts = {
        COMPARED: f"wima {__version__}\n",
        "compare.md": markdown(comparison, command),
        "compare.tex": latex(comparison, command),
        "compare.csv": data_csv(comparison),
    }
    with written(out, folder=True, over=force, kind=UsageError) as draft:
        for name, content in texts.items():
            text.write(draft / name, content)
        draw_comparison(comparison.table, draft)


def markdown(comparison: Comparison, command: str) -> str:
    lines = [*caption(comparison), "Bold: the best of a column.", *warnings(comparison)]
    lines += [f"Left out: {item.path}: {item.reason}" for item in comparison.omitted]
    title = f"# Comparison with {text.in_markdown(comparison.baseline.name)}"
    made = f"Made by `{' '.join(command.split())}`, wima {__version__}."
    table = text.markdown_table(grid(comparison), bold=True)
    return "\n\n".join([title, made, table, text.markdown_list(lines)]) + "\n"


def latex(comparison: Comparison, command: str) -> str:
    """A table environment for a document that loads booktabs; narrow enough for a paper.

    Constant columns are in the caption or left out, and so are p-values other than Holm's.
    """
    without = constant_columns(comparison) | {"p", "won:lost"}
    without |= {"model"} if len(comparison.table.sheet.headings) == 1 else set()
    body = text.tabular(grid(comparison, without), papers=False)
    comments = [f"{command} (wima {__version__})", *warnings(comparison), r"\usepackage{booktabs}"]
    return text.environment(comments, " ".join(caption(comparison)), body)


def data_csv(comparison: Comparison) -> str:
    """Every number as recorded: a line per seed, and one without a seed for all seeds."""
    lines: list[dict[str, Any]] = []
    for row in comparison.rows:
        names = {"method": row.row, "model": row.heading}
        lines += [{**line, **names} for line in text.member_data(row)]
        line = {
            **names,
            "mean": row.mean,
            "deviation": row.deviation,
            "reached": _speed(row),
            "seeds": len(row.scores),
            "reached_bytes": _sent(row),
        }
        if gain := row.gain:
            line |= {"pairs": gain.size, "difference": gain.mean, "p": gain.p, "p_holm": gain.holm}
            line |= {"low": gain.mean - gain.half, "high": gain.mean + gain.half}
            line |= {"won": comparison.won(row), "lost": comparison.won(row, -1)}
        lines.append(line)
    recorded = not all(isnan(_sent(row)) for row in comparison.rows)
    return text.csv_text([*DATA, "reached_bytes"] if recorded else DATA, lines)

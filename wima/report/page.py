"""The report as one self-contained HTML page.

The template and files in web/ are joined; the data are embedded as JSON and drawn by web/*.js.
"""

import json
import shlex
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from wima.core.measure import Measure, megabytes
from wima.report import paper_page
from wima.report.figures import PANELS, band_of
from wima.report.inputs import Omitted, Source
from wima.report.names import proper
from wima.report.notes import Section, below, bytes_notes, gain_notes, settings_notes
from wima.report.statistics import Curve, thinned
from wima.report.table import Entry, Table, all_runs, common_seeds
from wima.runs.summary import sparse_until

FOLDER = Path(__file__).parent / "web"
PARTS = "dom scale curves chart strip legend table sections runs page"
SCRIPTS = [f"{name}.js" for name in PARTS.split()]
BUDGET = 1_200_000  # points of all curves together, about 6 MB
LEAST, MOST = 60, 1000  # points per curve
OWN = ("started", "engine", "threads", "workers", "clients")  # facts of a run, not of its machine
GAINS = 60  # lines of the forest plot; data.csv has all
CIRCLES = "Circles: the paper's gain; grey where our settings differ from the paper's."


def page(
    tables: Sequence[Table],
    omitted: Sequence[Omitted],
    facts: Mapping[str, str],
    author: paper_page.Notes,
    files: Mapping[str, Sequence[str]],
) -> str:
    """The page for these tables.  files: slug -> the other files of a table."""
    data = payload(tables, omitted) | {"facts": facts, "files": files}
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for char in "<>&":  # so that it cannot close the script element
        text = text.replace(char, f"\\u{ord(char):04x}")
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    script = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    beside = paper_page.beside_paper(tables)
    remarks = " ".join(paper_page.glance_notes(beside))
    by_data = "\n\n".join(f"## {name}\n\n{text}" for name, text in author.by_data.items())
    general, details = _html(author.general), _html(by_data)
    loader = FileSystemLoader(FOLDER)
    environment = Environment(loader=loader, autoescape=True, keep_trailing_newline=True)
    return environment.get_template("page.html").render(
        facts=facts,
        headline=paper_page.headline(tables),
        glance={**paper_page.glance(beside)._asdict(), "title": paper_page.TITLE, "notes": remarks},
        forest=forest(paper_page.comparisons(tables)),
        notes=[("notes", "Notes", general), ("details", "By data set", details)],
        policy={name: _hash(text) for name, text in (("style", style), ("script", script))},
        style=style,
        script=script,
        data=text,
    )


def _html(notes: str) -> Markup:
    """The author's notes, in Markdown, with headings below the page's own."""
    if not notes:
        return Markup()
    from markdown_it import MarkdownIt  # an extra: `read_notes` checks that it is installed

    reader = MarkdownIt("commonmark", {"html": False}).disable("image").enable("table")
    tokens = reader.parse(notes)
    for token in tokens:
        if token.type.startswith("heading"):
            token.tag = f"h{max(3, int(token.tag[1]))}"
    return Markup(reader.renderer.render(tokens, reader.options, {}))


def _hash(text: str) -> Markup:
    """The source in the page's policy that allows only this script or style."""
    return Markup(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'")


def forest(found: Sequence[paper_page.Found]) -> dict[str, Any]:
    """The gains as a forest plot: a block with its own axis for each column of the tables."""
    if not found:
        return {"blocks": [], "notes": ""}
    shown, measure = found[:GAINS], found[0].table.measure
    columns = dict.fromkeys(one.entry.column for one in shown)
    blocks = [_block([one for one in shown if one.entry.column == name]) for name in columns]
    unit = "in points" if measure.is_share else f"of test {measure.metric}"
    notes = [f"Average minus plain, {unit}, with 95 % intervals; an axis per block."]
    notes += [CIRCLES] if any(one.entry.paper_gain is not None for one in shown) else []
    if len(found) > GAINS:
        notes.append(f"The first {GAINS} of {len(found)}; all are in data.csv.")
    return {"blocks": blocks, "notes": " ".join(notes)}


def _block(found: Sequence[paper_page.Found]) -> dict[str, Any]:
    """Places on a track are in percent, so that it fits every screen."""
    measure = found[0].table.measure
    ends = [0.0]
    for one in found:
        half = 0.0 if isnan(one.gain.half) else one.gain.half
        ends += [measure.factor * (one.gain.mean + side * half) for side in (-1, 1)]
        ends += [] if one.entry.paper_gain is None else [one.entry.paper_gain]
    room = 0.06 * (max(ends) - min(ends)) or 1.0
    low, high = min(ends) - room, max(ends) + room

    def at(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    rows = []
    for one in found:
        mean, half = measure.factor * one.gain.mean, measure.factor * one.gain.half
        unclear = isnan(half) or abs(mean) <= half
        first, *rest = measure.interval(one.gain).split(" ", 1)
        rows.append(
            {
                "name": proper(one.entry.row),
                "kind": "unclear" if unclear else "better" if measure.sign * mean > 0 else "worse",
                "at": at(mean),
                "ends": [] if isnan(half) else [at(mean - half), at(mean + half)],
                "paper": "" if one.entry.paper_gain is None else at(one.entry.paper_gain),
                "same": one.table.sheet.scale == "paper",
                "mean": first,
                "interval": " ".join(rest),
            }
        )
    ticks = [t for t in MaxNLocator(3).tick_values(low, high) if low <= t <= high]
    texts = [f"{round(t, 9):+g}".replace("-", "−") if abs(t) > 1e-9 else "0" for t in ticks]
    marks = [(at(tick), text) for tick, text in zip(ticks, texts, strict=True)]
    return {"name": proper(found[0].entry.column), "zero": at(0), "ticks": marks, "rows": rows}


# The data


def payload(tables: Sequence[Table], omitted: Sequence[Omitted]) -> dict[str, Any]:
    """Everything that the page draws, as JSON."""
    measure = tables[0].measure
    runs = sorted(all_runs(tables), key=lambda run: str(run.path))
    index = {run.number: i for i, run in enumerate(runs)}
    entries = [entry for table in tables for entry in table.entries.values()]
    count = 3 * sum(band_of(entry.members) is not None for entry in entries)
    metrics = {measure.metric, "window"}
    count += sum(metric in metrics for run in runs for _, metric in run.curves)
    points = min(MOST, max(LEAST, BUDGET // max(count, 1)))
    machines: dict[str, int] = {}
    return {
        "measure": {
            "title": measure.title,
            "share": measure.is_share,
            "digits": measure.digits,
            "sign": measure.sign,
            "target": None if measure.target is None else measure.factor * measure.target,
        },
        "tables": [_table(table, index, points) for table in tables],
        "runs": [_run(run, machines, points, measure) for run in runs],
        "machines": [json.loads(text) for text in machines],
        "omitted": [list(item) for item in omitted],
    }


def _table(table: Table, index: Mapping[int, int], points: int) -> dict[str, Any]:
    sheet = table.sheet
    facts = {key: value for key, value in sheet._asdict().items() if key not in ("cells", "last")}
    facts |= {"slug": table.slug, "last": table.last, "settings": settings_notes(table)}
    facts |= {"seeds": common_seeds(table), "long": dict(table.long)}
    facts |= {"sections": made} if (made := [*map(_section, below(table))]) else {}
    facts["gainNotes"] = [*gain_notes(table), *bytes_notes(table)]
    entries = [_entry(table, entry, index, points) for entry in table.entries.values()]
    return {**facts, "entries": entries}


def _section(section: Section) -> dict[str, Any]:
    """A section below a table; the points of its figure have two decimals."""
    made = {"title": section.title, "notes": section.notes, "grid": section.grid[:3]}
    if section.picture is None:
        return made
    *axes, panels = section.picture
    shown = [
        [title, {h: np.round(points, 2).tolist() for h, points in lines.items()}]
        for title, lines in panels[:PANELS]
    ]
    return {**made, "picture": [*axes, shown, len(panels) - len(shown)]}


def _entry(table: Table, entry: Entry, index: Mapping[int, int], points: int) -> dict[str, Any]:
    """A number in a table.  Values are as shown: percent for an accuracy."""
    sheet, measure, gain = table.sheet, table.measure, entry.gain
    scores = [*entry.scores.values()] if entry.seeds else []

    def shown(value: float) -> float | None:
        """A recorded value as shown, with two extra digits."""
        return None if isnan(value) else round(measure.factor * value, measure.digits + 2)

    def mean(name: str) -> float | None:
        values = [getattr(score, name) for score in scores]
        return shown(float(np.mean(values))) if values else None

    heading = sheet.headings.index(entry.heading) if entry.heading in sheet.headings else -1
    made: dict[str, Any] = {
        "at": [sheet.rows.index(entry.row), sheet.columns.index(entry.column), heading],
        "mean": shown(entry.mean),
        "deviation": shown(entry.deviation),
        "text": entry.text,
        "seeds": entry.seeds,
        "basis": entry.basis,
        "jitter": mean("deviation"),
        "jump": mean("jump"),
        "forgetting": mean("forgetting"),
        "reached": [score.reached for score in scores],
        "members": [[m.seed, index[m.run.number] if m.run else -1, m.model] for m in entry.members],
    }
    made |= {} if isnan(entry.sent) else {"sent": [entry.sent, megabytes(entry.sent)]}
    if gain is not None:
        made["gain"] = [shown(gain.mean), shown(gain.half), gain.basis, gain.size, gain.marked]
    if entry.printed is not None:
        made["paper"] = entry.printed.value
        made |= {"where": entry.printed.where, "remark": entry.printed.remark}
        made["paperGain"] = entry.paper_gain
    if band := band_of(entry.members):  # the mean over seeds as a curve, with its ends
        scale = measure.factor * 10**measure.digits
        kept = np.isin(band.rounds, thinned(band.mean, points).rounds)
        made["band"] = _curve(band.mean, points, scale)
        for name, end in (("low", band.values.min), ("high", band.values.max)):
            values = end(axis=0)[kept]
            made["band"][name] = _points(Curve(band.rounds[kept], values), scale)["v"]
        made["band"]["seeds"] = band.seeds
    return made


def _run(run: Source, machines: dict[str, int], points: int, measure: Measure) -> dict[str, Any]:
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in run.environment.items()
        if name != "command"
    }
    machine = json.dumps({name: text for name, text in texts.items() if name not in OWN})
    words = run.environment.get("command")
    command = "" if words is None else str(words)
    scale = measure.factor * 10**measure.digits
    values, windows = (
        {m: run.curves[m, metric] for m in run.models if (m, metric) in run.curves}
        for metric in (measure.metric, "window")
    )
    return {
        "name": str(run.path),
        "state": run.state,
        "reason": run.reason,
        "done": run.done,
        "rounds": run.settings.rounds,
        "seed": run.settings.seed,
        "seconds": None if run.seconds is None else round(run.seconds, 2),
        "algorithm": str(run.settings.algorithm),
        "data": str(run.settings.data),
        "settings": run.settings.to_toml(),
        "command": shlex.join(map(str, words)) if isinstance(words, list) else command,
        "own": {name: texts[name] for name in OWN if name in texts},
        "machine": machines.setdefault(machine, len(machines)),
        "curves": {m: _curve(c, points, scale) for m, c in values.items()},
        "windows": {m: _points(thinned(c, points)) for m, c in windows.items()},
    }


def _curve(curve: Curve, points: int, scale: float) -> dict[str, Any]:
    """A curve for the page; `sparse`: the round up to which evaluations are points."""
    until = sparse_until(curve.rounds)
    return _points(thinned(curve, points), scale) | ({"sparse": until} if until else {})


def _points(curve: Curve, scale: float = 1) -> dict[str, Any]:
    """Rounds, as start and step if they are regular, and scaled values as integers."""
    values = [None if not isfinite(v) else round(v * scale) for v in curve.values.tolist()]
    steps = np.unique(np.diff(curve.rounds))
    if len(steps) == 1:
        return {"first": int(curve.rounds[0]), "step": int(steps[0]), "v": values}
    return {"t": curve.rounds.tolist(), "v": values}

"""The report as one self-contained HTML page.

The files in page/ are joined; the data are embedded as JSON and drawn by page/*.js.
"""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
from markdown_it import MarkdownIt

from wima.report.bands import Band, band_of, sparse_until
from wima.report.below import below
from wima.report.forest import forest
from wima.report.gather import Omitted, Trace
from wima.report.glance import beside_paper, glance_section
from wima.report.grid import common_seeds, grid, paper_gain
from wima.report.headline import comparisons, headline
from wima.report.measure import Measure, megabytes
from wima.report.notes import bytes_notes, gain_notes, settings_notes
from wima.report.panels import MOST as PANELS
from wima.report.regret import NOTES
from wima.report.statistics import Curve, thinned
from wima.report.tables import Entry, Table

FOLDER = Path(__file__).parent / "page"
SCRIPTS = (
    "dom.js",
    "scale.js",
    "curves.js",
    "chart.js",
    "strip.js",
    "legend.js",
    "table.js",
    "sections.js",
    "runs.js",
    "page.js",
)
BUDGET = 1_200_000  # points of all curves together, about 6 MB
LEAST, MOST = 60, 1000  # points per curve
OWN = ("started", "engine", "threads", "workers", "clients")  # facts of a run, not of its machine


def page(
    tables: Sequence[Table],
    omitted: Sequence[Omitted],
    measure: Measure,
    facts: dict[str, Any],
    files: dict[str, list[str]],
) -> str:
    """The page for these tables.  files: slug -> the other files of a table."""
    data = payload(tables, omitted, measure)
    shown = {name: fact for name, fact in facts.items() if name not in ("notes", "by_data")}
    data |= {"facts": shown, "files": files}
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    script = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
    parts = {
        "title": escape(str(facts["title"])),
        "headline": escape(headline(tables, measure)),
        "gains": forest(comparisons(tables), measure),
        "glance": glance_section(beside_paper(tables), measure),
        "notes": notes_section(facts.get("notes", "")),
        "details": notes_section(_joined(facts.get("by_data", {})), "details", "By data set"),
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}",
        "style": style,
        "script": script,
        "data": _inside_html(data),
    }
    template = (FOLDER / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _joined(by_data: dict[str, str]) -> str:
    return "\n\n".join(f"## {name}\n\n{text}" for name, text in by_data.items())


def notes_section(notes: str, name: str = "notes", title: str = "Notes") -> str:
    """The author's notes, in Markdown, with headings below the page's own."""
    if not notes:
        return ""
    reader = MarkdownIt("commonmark", {"html": False}).disable("image").enable("table")
    tokens = reader.parse(notes)
    for token in tokens:
        if token.type.startswith("heading"):
            token.tag = f"h{max(3, int(token.tag[1]))}"
    text = reader.renderer.render(tokens, reader.options, {})
    return f'<section id="{name}" class="notes"><h2>{title}</h2>\n{text}</section>'


def _hash(text: str) -> str:
    """The source in the page's policy that allows only this script or style."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _inside_html(data: Any) -> str:
    """JSON that cannot close the script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def payload(
    tables: Sequence[Table], omitted: Sequence[Omitted], measure: Measure
) -> dict[str, Any]:
    """Everything that the page shows, as JSON."""
    shown = {id(run): run for table in tables for run in table.runs()}
    runs = sorted(shown.values(), key=lambda run: str(run.path))
    number = {id(run): i for i, run in enumerate(runs)}
    entries = [entry for table in tables for entry in table.entries.values()]
    bands = {id(entry): band_of(entry.members) for entry in entries}
    curves = sum(len(run.curves) + len(run.windows) for run in runs)
    curves += 3 * sum(band is not None for band in bands.values())
    points = min(MOST, max(LEAST, BUDGET // max(curves, 1)))
    machines: dict[str, int] = {}
    return {
        "measure": {
            "title": measure.title,
            "share": measure.is_share,
            "digits": measure.digits,
            "sign": measure.sign,
            "target": None if measure.target is None else measure.factor * measure.target,
        },
        "tables": [_table(table, number, measure, bands, points) for table in tables],
        "runs": [_run(run, machines, points, measure) for run in runs],
        "machines": [json.loads(text) for text in machines],
        "omitted": [list(item) for item in omitted],
    }


def _table(
    table: Table,
    number: dict[int, int],
    measure: Measure,
    bands: dict[int, Band | None],
    points: int,
) -> dict[str, Any]:
    sheet = table.sheet
    names = ["name", "title", "shown", "kind", "scale", "note", "command"]
    names += ["rows", "columns", "headings"]
    entries = []
    for entry in table.entries.values():
        shown, band = _entry(table, entry, number, measure), bands[id(entry)]
        entries.append(shown if band is None else {**shown, "band": _band(band, points, measure)})
    about = {name: getattr(sheet, name) for name in names}
    about |= {
        "slug": table.slug,
        "last": table.last,
        "settings": settings_notes(table),
    }
    about |= {"seeds": common_seeds(table), "long": dict(table.long)}
    about |= {"sections": made} if (made := _sections(table)) else {}
    if sheet.kind == "regret":
        return {**about, "gainNotes": NOTES, "grid": grid(table, measure)[:3], "entries": entries}
    told = [*gain_notes(table), *bytes_notes(table, measure)]
    return {**about, "gainNotes": told, "entries": entries}


def _sections(table: Table) -> list[dict[str, Any]]:
    """The sections below a table; the points of their figures have two decimals."""
    made = []
    for section in below(table):
        shown: dict[str, Any] = {"title": section.title, "notes": section.notes}
        shown["grid"] = section.grid[:3]
        if section.picture is not None:
            panels = [
                [title, {h: np.round(points, 2).tolist() for h, points in lines.items()}]
                for title, lines in section.picture.panels[:PANELS]
            ]
            hidden = len(section.picture.panels) - len(panels)
            shown["picture"] = [*section.picture[:3], panels, hidden]
        made.append(shown)
    return made


def _entry(table: Table, entry: Entry, number: dict[int, int], measure: Measure) -> dict[str, Any]:
    """A number in a table.  Values are as shown: percent for an accuracy."""
    sheet, gain = table.sheet, entry.gain
    scores = [m.score for m in entry.members if m.counts and m.score] if entry.seeds else []
    shown: dict[str, Any] = {
        "mean": _shown(entry.mean, measure),
        "deviation": _shown(entry.deviation, measure),
        "text": entry.text,
        "seeds": entry.seeds,
        "basis": entry.basis,
        "jitter": _shown(_mean([s.deviation for s in scores]), measure),
        "jump": _shown(_mean([s.jump for s in scores]), measure),
        "forgetting": _shown(_mean([s.forgetting for s in scores]), measure),
        "reached": [s.reached for s in scores],
        "members": [[m.seed, number[id(m.run)] if m.run else -1, m.model] for m in entry.members],
    }
    shown |= {} if isnan(entry.sent) else {"sent": [entry.sent, megabytes(entry.sent)]}
    if gain is not None:
        ends = [_shown(gain.mean, measure), _shown(gain.half, measure)]
        shown["gain"] = [*ends, gain.basis, gain.size, gain.marked]
    if entry.printed is not None:
        shown["paper"] = entry.printed.value
        shown |= {"where": entry.printed.where, "remark": entry.printed.remark}
        shown["paperGain"] = paper_gain(table, entry)
    place = [
        sheet.rows.index(entry.row),
        sheet.columns.index(entry.column),
        sheet.headings.index(entry.heading) if entry.heading in sheet.headings else -1,
    ]
    return {"at": place, **shown}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _shown(value: float, measure: Measure) -> float | None:
    """A recorded value as shown, with two extra digits."""
    return None if isnan(value) else round(measure.factor * value, measure.digits + 2)


def _run(run: Trace, machines: dict[str, int], points: int, measure: Measure) -> dict[str, Any]:
    around = {name: _text(value) for name, value in run.environment.items() if name != "command"}
    machine = {name: text for name, text in around.items() if name not in OWN}
    known = machines.setdefault(json.dumps(machine), len(machines))
    settings, scale = run.settings, measure.factor * 10**measure.digits
    return {
        "name": str(run.path),
        "state": run.state,
        "reason": run.reason,
        "done": run.done,
        "rounds": settings.rounds,
        "seed": settings.seed,
        "seconds": None if run.seconds is None else round(run.seconds, 2),
        "algorithm": str(settings.algorithm),
        "data": str(settings.data),
        "settings": settings.to_toml(),
        "command": _command(run.environment.get("command")),
        "own": {name: around[name] for name in OWN if name in around},
        "machine": known,
        "curves": {m: _curve(c, points, scale) for m, c in run.curves.items()},
        "windows": {m: _points(thinned(c, points)) for m, c in run.windows.items()},
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _command(words: Any) -> str:
    if not isinstance(words, list):
        return "" if words is None else str(words)
    return shlex.join(str(word) for word in words)


def _curve(curve: Curve, points: int, scale: float) -> dict[str, Any]:
    """A curve for the page; `sparse`: the round up to which evaluations are points."""
    until = sparse_until(curve.rounds)
    return _points(thinned(curve, points), scale) | ({"sparse": until} if until else {})


def _band(band: Band, points: int, measure: Measure) -> dict[str, Any]:
    """The mean over seeds as a curve, with the minimum and maximum in the same rounds."""
    scale = measure.factor * 10**measure.digits
    mean = _curve(Curve(band.rounds, band.mean), points, scale)
    kept = np.isin(band.rounds, thinned(Curve(band.rounds, band.mean), points).rounds)
    ends = {"low": band.low, "high": band.high}
    own = {n: _points(Curve(band.rounds[kept], v[kept]), scale)["v"] for n, v in ends.items()}
    return {**mean, **own, "seeds": band.seeds}


def _points(curve: Curve, scale: float = 1) -> dict[str, Any]:
    """Rounds, as start and step if they are regular, and scaled values as integers."""
    values = [None if not isfinite(v) else round(v * scale) for v in curve.values.tolist()]
    steps = np.unique(np.diff(curve.rounds))
    if len(steps) == 1:
        return {"first": int(curve.rounds[0]), "step": int(steps[0]), "v": values}
    return {"t": curve.rounds.tolist(), "v": values}

"""`wima sweep`: a grid of settings x seeds as a sheet."""

from itertools import product
from pathlib import Path
from typing import Any

from wima.core.errors import UsageError, check
from wima.core.statistics import last_rounds
from wima.experiments.plan import Job
from wima.experiments.sheet import Cell, Sheet, own_sheet
from wima.runs.folder import run_name
from wima.runs.settings import Settings, load_settings, parse_override


def expand_grid(
    name: str, source: str, overrides: list[str], axes: list[str], seeds: list[int], command: str
) -> tuple[Sheet, list[Job]]:
    """All combinations of the axes' values; an axis is `key=value,value,...`."""
    keys = [parse_axis(text) for text in axes]
    points = [
        [f"{key}={value}" for (key, _), value in zip(keys, values, strict=True)]
        for values in product(*(values for _, values in keys))
    ]
    return expand_points(name, source, overrides, points, seeds, command)


def expand_points(
    name: str,
    source: str,
    overrides: list[str],
    points: list[list[str]],
    seeds: list[int],
    command: str,
) -> tuple[Sheet, list[Job]]:
    """A row per point, a list of `key=value`, and a run for each of its seeds."""
    jobs, cells = [], []
    for changes in points:
        row = ", ".join(changes) or source
        for seed in seeds:
            settings = load_settings(source, [*overrides, *changes, f"seed={seed}"])
            job = Job(run_name(settings, seed=True), settings)
            jobs.append(job)
            cells.append(Cell(row, Path(source).stem, seed, job.name, _models(settings)))
    headings = list(dict.fromkeys(heading for cell in cells for heading in cell.models))
    rounds = min(job.settings.rounds for job in jobs)
    keys = [change.partition("=")[0] for change in points[0]]
    sheet = own_sheet(
        name,
        f"{Path(source).stem}: {', '.join(keys) or 'seeds'}",
        last_rounds(rounds),
        command=command,
        rows=list(dict.fromkeys(cell.row for cell in cells)),
        columns=[Path(source).stem],
        headings=headings,
        cells=cells,
    )
    return sheet, list({job.name: job for job in jobs}.values())


def parse_axis(text: str) -> tuple[str, list[str]]:
    """`key=value,value` as a key and its values as strings."""
    key, equals, values = text.partition("=")
    check(bool(key and equals and values), f"Expected --grid key=value,value, got {text!r}.")
    listed = values.split(",")
    for value in listed:
        parse_override(f"{key}={value}")
    return key, listed


def parse_seeds(text: str) -> list[int]:
    """`0,1,2` or `0-4` as seeds."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise UsageError(f"Expected seeds like 0,1,2 or 0-4, got {text!r}.") from None
    check(bool(seeds) and min(seeds) >= 0, f"Expected seeds like 0,1,2 or 0-4, got {text!r}.")
    return list(dict.fromkeys(seeds))


def _models(settings: Settings) -> dict[str, Any]:
    names = [averager.name for averager in settings.make("averagers")]
    return {"plain": "plain", **{name: name for name in names}}

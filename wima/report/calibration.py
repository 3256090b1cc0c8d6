"""Calibration of models: calibration error, likelihood, reliability diagram."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from wima.report.measure import Measure
from wima.report.section import (
    Column,
    Numbers,
    Picture,
    Points,
    Section,
    grid_of,
    lines_of,
    panels_of,
)
from wima.report.statistics import late
from wima.report.tables import Member, Table

KEY = "calibration"
COLUMNS = [
    Column("ECE", "ece", Measure("ece"), "change in ECE"),
    Column("NLL", "loss", Measure("loss"), "change in NLL"),
]
NOTE = (
    "ECE: expected calibration error, the mean of |accuracy − confidence| over bins of "
    "confidence, weighted by their examples. NLL: negative log-likelihood."
)


def calibration(table: Table) -> Section | None:
    """Errors over the last rounds, and accuracy against confidence in the last round."""
    lines = lines_of(table, {"": partial(_errors, table.last)})
    if not lines:
        return None
    grid, notes = grid_of(lines, COLUMNS)
    told = [f"Mean over the last {table.last} rounds; lower is better.", NOTE, *notes]
    panels = panels_of(table, _reliability)
    if panels:
        told.append("Picture: the last evaluated round; bins of several seeds are pooled.")
    picture = Picture("mean confidence of a bin, %", "accuracy, %", True, panels)
    return Section(KEY, "Calibration", grid, told, picture)


def _errors(last: int, member: Member) -> Numbers:
    """The mean of each metric over the last rounds."""
    if member.run is None:
        return {}
    curves = {name: own.get(member.model) for name, own in member.run.calibration.items()}
    values = {name: late(own, member.run.done, last) for name, own in curves.items() if own}
    return {name: float(np.mean(own)) for name, own in values.items() if len(own)}


def _reliability(members: Sequence[Member]) -> Points:
    """Mean confidence and accuracy of each non-empty bin, in percent."""
    runs = [m.run.extras.newest.get(KEY, (0, {}))[1].get(m.model) for m in members if m.run]
    points = []
    for bins in zip(*filter(None, runs), strict=False):
        filled = np.array([own for own in bins if own[0]], float).reshape(-1, 3)
        count = filled[:, 0].sum()
        if count:
            confidence, accuracy = 100 * (filled[:, 0] @ filled[:, 1:]) / count
            points.append((float(confidence), float(accuracy)))
    return points

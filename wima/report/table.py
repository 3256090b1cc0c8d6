"""The summary of a run as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from wima.report.summary import LAST, Row


def summary_table(rows: list[Row], metric: str = "accuracy") -> Table:
    """Mean and round-to-round deviation, in percent for an accuracy, with the gain over plain."""
    scale, unit = (100, " %") if metric == "accuracy" else (1, "")
    digits = 2 if scale == 100 else 4
    count = rows[0].evaluations if rows else 0
    table = Table(title=f"Test {metric}{unit}, {count} evaluations in the last {LAST} rounds")
    for heading in ("model", "mean", "deviation", "gain"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        gain = "" if row is rows[0] else f"{scale * (row.mean - rows[0].mean):+.{digits}f}"
        mean, deviation = scale * row.mean, scale * row.deviation
        table.add_row(row.model, f"{mean:.{digits}f}", f"{deviation:.{digits}f}", gain)
    return table

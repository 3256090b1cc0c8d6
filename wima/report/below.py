"""The sections below a table, if its runs recorded them."""

from __future__ import annotations

from wima.report.calibration import calibration
from wima.report.clients import clients, finetuned
from wima.report.section import Section
from wima.report.tables import Table


def below(table: Table) -> list[Section]:
    """The sections on clients, fine-tuning and calibration that have numbers."""
    if table.sheet.kind == "regret":
        return []
    made = (clients(table), finetuned(table), calibration(table))
    return [section for section in made if section is not None]

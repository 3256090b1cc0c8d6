"""Runs with made-up curves, and what a report says of them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np

from tests.helpers.browser import Browser
from tests.helpers.run_folders import moving_mean
from wima.experiments.sheet import Cell, Sheet

ROUNDS, LAST = 60, 40
COLUMN, OTHER = "CIFAR-10 α = 0", "FEMNIST"
AVERAGE = "WIMA, W = 10"  # what a report calls `WIMA` of wima10, unless the scale is `paper`


def curves(seed: int, height: float = 0.6, rounds: int = ROUNDS) -> dict[str, np.ndarray]:
    """A jagged curve and its moving mean, which is a little higher."""
    rng = np.random.default_rng(seed)
    plain = np.clip(height + 0.05 * rng.normal(size=rounds), 0, 1)
    return {"plain": plain, "wima10": moving_mean(plain, 10) + 0.02}


def make_sheet(cells: list[Cell], **changes) -> Sheet:
    fields = {
        "name": "sota",
        "title": "State of the art",
        "shown": "Table 2",
        "kind": "table",
        "scale": "smoke",
        "note": "60 rounds.",
        "command": "wima paper sota --scale smoke",
        "last": LAST,
        "rows": ["FedAvg", "SCAFFOLD", "FedDyn"],
        "columns": [COLUMN, OTHER],
        "headings": ["plain", "WIMA"],
        "cells": cells,
    }
    return Sheet(**{**fields, **changes})


def data_of(report: Path) -> dict:
    """The data inside the page."""
    text = (report / "index.html").read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    return json.loads(found[1])


def numbers(report: Path) -> list[dict[str, str]]:
    with (report / "data.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def place(report: Path, row: str, column: str, heading: str, seed: str = "") -> dict[str, str]:
    wanted = {"row": row, "column": column, "heading": heading, "seed": seed}
    return next(line for line in numbers(report) if wanted.items() <= line.items())


def show_all(browser: Browser) -> None:
    """Scroll through the page, so that every table and chart is made."""
    browser.js("document.querySelectorAll('.lazy').forEach((e) => e.scrollIntoView())")
    for number in range(browser.js("document.querySelectorAll('.lazy').length")):
        browser.js(f"document.querySelectorAll('.lazy')[{number}].scrollIntoView()")
        browser.wait(f"document.querySelectorAll('.lazy')[{number}].childElementCount > 0")
    browser.settle()

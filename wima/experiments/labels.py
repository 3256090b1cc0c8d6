"""Names of rows and headings with the window that was used; at small scales, not the paper's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

# Endings of names with the paper's lengths.
ENDING = re.compile(r"W = (\d{1,9})$|every (\d{1,9})th of (\d{1,9})$")
USED = re.compile(r"W = \d+ \(paper: (\d+)\)$")
WIMA = "WIMA"  # the paper's name for its average
ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def used_label(label: str, models: Iterable[str]) -> str:
    """For the model `wima20`, `W = 100` becomes `W = 20 (paper: 100)`; others are unchanged."""
    lengths = {_lengths(model) for model in models}
    found = ENDING.search(label)
    if found is None or len(lengths) != 1:
        return label
    window, every = lengths.pop()
    own, step, whole = found.groups()
    paper = own or whole
    if window is None or window == int(paper):
        return label
    used = f"W = {window}" if own else f"every {ORDINALS.get(every, f'{every}th')} of {window}"
    printed = paper if own else f"{step}th of {paper}"
    return f"{label[: found.start()]}{used} (paper: {printed})"


def own_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels without the paper's windows, unless two would become the same."""
    short = {old: re.sub(r" \(paper: .*\)$", "", new) for old, new in labels.items()}
    return short if len(set(short.values())) == len(short) else dict(labels)


def sized_label(label: str, models: Iterable[str]) -> str:
    """Like `used_label`; for the model `wima20`, `WIMA` becomes `WIMA, W = 20`."""
    models = set(models)
    sole = re.fullmatch(r"wima(\d{1,9})", "".join(models)) if label == WIMA else None
    return f"{WIMA}, W = {sole[1]}" if sole else used_label(label, models)


def paper_label(label: str) -> str:
    """The paper's name for a label with the window that was used."""
    return WIMA if re.fullmatch(rf"{WIMA}, W = \d+", label) else USED.sub(r"W = \1", label)


def _lengths(model: str) -> tuple[int | None, int]:
    """How many rounds a model's average spans, and the step between the models it uses."""
    if wima := re.fullmatch(r"wima(\d{1,9})", model):
        return int(wima[1]), 1
    if lawa := re.fullmatch(r"lawa(\d{1,9})x(\d{1,9})", model):
        return int(lawa[1]) * int(lawa[2]), int(lawa[2])
    if ema := re.fullmatch(r"ema(0\.\d{1,9})", model):
        return round((1 + float(ema[1])) / (1 - float(ema[1]))), 1
    return None, 1

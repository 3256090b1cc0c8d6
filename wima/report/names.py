"""Names as printed in papers, for the short names in settings and records."""

from __future__ import annotations

import re
from functools import cache

from wima.experiments.plan import methods, settings
from wima.runs.settings import as_choice

MODEL = re.compile(r"(wima|ema|power-ema|lawa|swa)(?:-?(auto|[\d.x]+))?((?:-[\w.]+)*)")


@cache
def _known() -> dict[str, str]:
    """Algorithms and data sets: name in settings -> name in papers."""
    found = {setting.preset: setting.label.split(" α")[0] for setting in settings().values()}
    for method in methods().values():
        found.setdefault(as_choice(method.set["algorithm"]).name, method.label.split()[0])
    return found


def proper(text: str) -> str:
    """`algorithm=fedavg, lr=0.1` as `FedAvg, lr = 0.1`; `wima50` as `WIMA, W = 50`."""
    text = re.sub(r"\balgorithm=", "", text)
    text = re.sub(r"(?<=\w):(?=\w+=)", ", ", text)
    text = re.sub(r"(?<![=\s])=(?![=\s])", " = ", text)
    return re.sub(r"[\w.-]+", lambda word: _known().get(word[0], _model(word[0])), text)


def _model(word: str) -> str:
    found = MODEL.fullmatch(word)
    if found is None:
        return word
    kind, size, rest = found.groups()
    sized = f", W = {size}" if kind == "wima" else f" {size}"
    named = {None: "", "auto": ", auto"}.get(size, sized)
    return kind.upper().replace("POWER-", "power ") + named + rest.replace("-", ", ")

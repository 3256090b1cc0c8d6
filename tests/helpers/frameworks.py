"""Other people's trainers, in processes of their own."""

from __future__ import annotations

import sys
from functools import cache

from tests.helpers.commands import printed
from tests.helpers.paths import ROOT

# For the scripts: what window="auto" makes of models and of the gradients that led to each.
RULE = """
import torch
from wima.averaging import WIMA, Averages


def copies(tensors):
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def follows_the_rule(average, models, gradients):
    watch = Averages({"auto": WIMA("auto")}, models[0])
    for model, gradient in zip(models, gradients, strict=True):
        watch.update(model, gradient)
    return (torch.equal(copies(average.tensors().values()), watch.vector("auto").float().double())
            and average.n_averaged == watch.used()["auto"] > 1)


def without_training(averaging):
    try:
        averaging.average
    except ValueError as error:
        print(error)
"""


@cache
def trained(code: str, example: str = "", python: str = sys.executable) -> str:
    """What a script prints, and an example after it; alone, since these packages keep globals."""
    if example:
        path = ROOT / "examples" / "frameworks" / example
        code += f"\nimport runpy\nrunpy.run_path({str(path)!r}, run_name='__main__')\n"
    return printed(code, python=python)


def accuracies(text: str) -> tuple[float, float]:
    """The figures of the last line: plain 0.912, wima 0.934."""
    plain, wima = text.splitlines()[-1].split(", ")
    return float(plain.removeprefix("plain ")), float(wima.removeprefix("wima "))

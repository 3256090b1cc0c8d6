"""What docs/flower.md says runs."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tests.helpers.flower_toys  # noqa: F401  (switches telemetry off)
from tests.helpers.paths import ROOT

# isort: split
from flwr.app import Context
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

PAGE = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)


class Client(NumPyClient):
    def fit(self, parameters, config):
        return [p + 0.1 for p in parameters], 10, {}

    def evaluate(self, parameters, config):
        return 0.0, 1, {}


def client_fn(context: Context):
    return Client().to_client()


def test_the_examples_run_in_their_order(capsys):
    names: dict = {"__name__": "flower_docs"}
    for block in BLOCKS:
        exec(compile(block, "docs/flower.md", "exec"), names)
    printed = capsys.readouterr().out
    found = re.search(r"{'accuracy': (0\.\d+), 'wima10/accuracy': (0\.\d+)}", printed)
    assert found and float(found[2]) > float(found[1])
    said = re.findall(r"accuracy (0\.\d+)", BLOCKS[1])  # the comment beside it
    assert [*map(float, found.groups())] == pytest.approx([*map(float, said)], abs=0.02)
    assert "plain ['plain', 'wima10']" in printed
    assert "(64, 10)" in printed
    counted, *said = re.search(r"# (\d+) clients, mean (.*), worst (.*)", PAGE).groups()
    found = names["found"]
    assert found["count"] == int(counted)
    assert [found["mean"], found["worst"]] == pytest.approx([*map(float, said)], abs=0.02)
    average, plain = names["result"].models["wima5"], names["result"].models["plain"]
    assert not np.array_equal(average["w"].numpy(), plain["w"].numpy())
    masking = ClientApp(client_fn, mods=[secaggplus_mod])
    names["run_flower"](names["secure_app"], masking, nodes=3, workers=1)
    assert "numpy.ndarray" in capsys.readouterr().out


def test_examples_are_about_ten_lines():
    for block in BLOCKS[1:]:
        assert len([line for line in block.splitlines() if line.strip()]) <= 16

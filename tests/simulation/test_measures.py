"""Measures of users: the same numbers in every engine, wherever numbers are shown."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import wima
from tests.helpers.paths import ROOT
from wima.core.errors import RunError, UsageError

PAGE = (ROOT / "docs" / "measures.md").read_text(encoding="utf-8")
(CODE,) = [
    block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "class MacroF1" in block
]
names: dict = {"__name__": "macro_f1"}
exec(compile(CODE, "docs/measures.md", "exec"), names)
MacroF1 = names["MacroF1"]
OPTIONS = {"rounds": 4, "clients_per_round": 2, "lr": 0.5, "averagers": wima.WIMA(2)}


def task_of(batch_size: int = 256) -> wima.Task:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 3))).argmax(1)
    data = wima.FederatedData.from_arrays(x[:60], y[:60], clients=np.arange(60) % 4)
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    return wima.make_task(model, data, test=(x[60:], y[60:]), eval_batch_size=batch_size)


def naive(output: torch.Tensor, y: torch.Tensor) -> float:
    scores = []
    for c in range(output.shape[1]):
        said, true = output.argmax(1) == c, y == c
        hits = float((said & true).sum())
        scores.append(2 * hits / max(1.0, float(said.sum() + true.sum())))
    return float(np.mean(scores))


@pytest.mark.parametrize("engine", ["serial", "reference", "batched", "processes"])
@pytest.mark.parametrize("batch_size", [1, 7, 256])
def test_a_measure_sees_the_whole_test_set_in_every_engine(engine, batch_size):
    task = task_of(batch_size)
    workers = 2 if engine == "processes" else None
    result = wima.run(task, measures=[MacroF1()], engine=engine, workers=workers, **OPTIONS)
    for name in ("plain", "wima2"):
        evaluation = task_of().evaluate
        with torch.no_grad():
            expected = naive(result.model(name)(evaluation.x), evaluation.y)
        assert result.curve(name, "macro_f1")[1][-1] == pytest.approx(expected)


def test_its_numbers_are_wherever_metrics_are(tmp_path):
    result = wima.run(task_of(), measures=[MacroF1()], out=tmp_path / "run", **OPTIONS)
    assert result.metrics == ["accuracy", "loss", "macro_f1"]
    assert result.to_pandas()["macro_f1"].notna().all()
    assert result.summary("macro_f1")[0].model == "plain"
    assert result.environment["directions"] == {
        "accuracy": "higher",
        "loss": "lower",
        "macro_f1": "higher",
    }


def test_measures_in_settings(cli, tmp_path):
    (tmp_path / "macro_f1.py").write_text(CODE)
    options = ("rounds=3", "measures=macro_f1.py:MacroF1", "--out", "r")
    code, _, err = cli("run", "digits", *options)
    assert code == 0, err
    assert "macro_f1" in wima.read_run(tmp_path / "r").metrics


class Silent(wima.Measure):
    def part(self, output, y):
        return 0

    def combine(self, parts):
        return {}


class Loss(Silent):
    better = {"loss": "lower"}  # noqa: RUF012


class Text(Silent):
    better = {"text": "lower"}  # noqa: RUF012

    def combine(self, parts):
        return {"text": "good"}


class Fails(Silent):
    better = {"fails": "lower"}  # noqa: RUF012

    def part(self, output, y):
        return output[:, 5]


@pytest.mark.parametrize(
    ("measures", "words"),
    [
        ([Silent()], r"Silent must say which of its values are better"),
        ([Loss()], r"Loss has the name of another metric: loss"),
        ([MacroF1(), MacroF1()], r"two objects of the class MacroF1"),
        ([Fails()], r"measure Fails failed on the first batch .* IndexError"),
        ([MacroF1], r"measures must be a list of wima.Measure objects"),
        (MacroF1(), r"measures must be a list of wima.Measure objects"),
    ],
)
def test_mistakes_are_refused_before_the_first_round(measures, words):
    with pytest.raises(UsageError, match=words):
        wima.simulate(task_of(), measures=measures, **OPTIONS)


def test_a_value_that_is_no_number_names_the_measure_and_the_round():
    with pytest.raises(RunError, match=r"round 1, measure Text.*a number for text"):
        wima.run(task_of(), measures=[Text()], **OPTIONS)


def test_a_task_of_functions_has_no_outputs_to_measure():
    task = task_of()._replace(evaluate=lambda w: {"norm": float(w.norm())})
    with pytest.raises(UsageError, match=r"need a task made by wima\.make_task"):
        wima.simulate(task, measures=[MacroF1()], **OPTIONS)

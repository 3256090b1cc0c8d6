"""Names and classes where objects are expected: the error says what to write."""

from __future__ import annotations

import pytest
import torch

import wima
from tests.helpers.unequal import OPTIONS, task_of
from wima import algorithms, averaging
from wima.algorithms import server_opt
from wima.simulation import privacy
from wima.simulation.options import SCHEDULES

REGISTRIES = {
    "algorithm": algorithms.BY_NAME,
    "averagers": averaging.BY_NAME,
    "server_opt": server_opt.BY_NAME,
    "schedule": SCHEDULES,
    "privacy": privacy.BY_NAME,
}


def refused(**given) -> str:
    with pytest.raises(wima.UsageError) as error:
        wima.simulate(task_of(), **given, **OPTIONS)
    return str(error.value)


@pytest.mark.parametrize("argument", REGISTRIES)
def test_a_name_or_a_class_is_answered_with_the_object(argument):
    for name, kind in REGISTRIES[argument].items():
        assert getattr(wima, kind.__name__) is kind, "what is advised exists"
        assert f"give wima.{kind.__name__}()." in refused(**{argument: name})
        assert f"give wima.{kind.__name__}()." in refused(**{argument: kind})
        assert f"give wima.{kind.__name__}(a=1, b=2)." in refused(**{argument: f"{name}:a=1:b=2"})
    assert "give an object such as wima." in refused(**{argument: 3})
    assert "give an object such as wima." in refused(**{argument: "nonsense"})


def test_averagers_are_one_several_or_named():
    one, *others = (
        wima.run(task_of(), averagers=given, **OPTIONS).vectors
        for given in (wima.WIMA(3), [wima.WIMA(3)], {"wima3": wima.WIMA(3)})
    )
    for other in others:
        assert all(torch.equal(one[name], other[name]) for name in ("plain", "wima3"))
    for given in (["ema"], {"mine": "ema"}):
        assert "averagers cannot be 'ema'; give wima.EMA()." in refused(averagers=given)


def test_other_mistakes_are_sentences_too():
    with pytest.raises(wima.UsageError, match=r"wima\.make_task.*got 'digits'"):
        wima.run("digits")
    with pytest.raises(wima.UsageError, match=r"model must be a torch.nn.Module.*got 'mlp'"):
        wima.make_task("mlp", task_of().data, (torch.zeros(1, 6), torch.zeros(1).long()))
    assert "did you mean 'server_opt'?" in refused(server=wima.SGD())

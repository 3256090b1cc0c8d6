"""The window average of arrays in containers, of three libraries."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict, defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import wima
from tests.helpers.commands import printed
from tests.helpers.paths import ROOT

FEDJAX = Path.home() / ".cache" / "wima-benchmarks" / "fedjax" / "bin" / "python"


class Pair(NamedTuple):
    first: Any
    second: Any


def test_one_array_is_averaged():
    random, average, seen = np.random.default_rng(0), wima.ArrayWindow([3, 10]), []
    for _ in range(25):
        seen.append(random.normal(size=(2, 3)).astype(np.float32))
        average.update(seen[-1])
        for window in (1, 2, 3, 10):
            value = average.value(window)
            assert value.dtype == np.float32
            expected = np.mean(np.array(seen[-window:], dtype=np.float64), axis=0)
            np.testing.assert_allclose(value, expected, rtol=3e-7, atol=1e-8)


def tree(k: int) -> dict[str, Any]:
    """Containers of containers, with arrays of several kinds that are linear in k."""
    return {
        "layers": [{"w": np.full((2, 2), k, np.float64)}, Pair(torch.full((3,), k / 2), 3 * k)],
        "more": (np.float32(k), np.arange(4)[::-1] * float(k), np.float16(k)),
        "half": torch.full((2,), k, dtype=torch.bfloat16),
        ("odd", 1): float(k),
        "name": "model",
        "none": None,
        "empty": [],
    }


def test_containers_come_back_with_the_same_kinds_of_things():
    average = wima.ArrayWindow(4)
    for k in range(10):
        average.update(tree(k))
    found, mean = average.value(), (6 + 7 + 8 + 9) / 4
    expected = tree(mean)
    expected["layers"][1] = Pair(torch.full((3,), mean / 2), 27)  # an integer: the newest
    assert isinstance(found["layers"][1], Pair) and isinstance(found["more"], tuple)
    assert found["layers"][1].second == 27 and found["name"] == "model" and found["empty"] == []
    np.testing.assert_array_equal(found["layers"][0]["w"], expected["layers"][0]["w"])
    assert torch.equal(found["layers"][1].first, expected["layers"][1].first)
    assert torch.equal(found["half"], expected["half"]) and found["half"].dtype == torch.bfloat16
    assert type(found["more"][0]) is np.float32 and found["more"][0] == np.float32(mean)
    np.testing.assert_array_equal(found["more"][1], expected["more"][1])
    assert type(found["more"][2]) is np.float16
    assert type(found["odd", 1]) is float and found["odd", 1] == mean


def test_kinds_of_dicts_are_kept_and_nothing_given_is_changed():
    given = OrderedDict(b=np.ones(2), a=defaultdict(list, x=np.zeros(1)))
    average = wima.ArrayWindow(2)
    average.update(given)
    given["b"] += 2  # the average has its own copy
    value = average.value()
    assert list(value) == ["b", "a"] and isinstance(value, OrderedDict)
    assert isinstance(value["a"], defaultdict) and value["a"].default_factory is list
    np.testing.assert_array_equal(value["b"], np.ones(2))
    value["b"] += 5
    np.testing.assert_array_equal(average.value()["b"], np.ones(2))


def test_a_state_dict_of_torch_is_a_dict_of_arrays(tmp_path):
    model = torch.nn.BatchNorm1d(3)
    loop = wima.WindowAverage(model, 3, folder=tmp_path)
    arrays = wima.ArrayWindow(3, every=2, folder=tmp_path)
    for step in range(1, 13):
        model(torch.randn(8, 3))
        arrays.update(model.state_dict())
        if step % 2 == 0:
            loop.update()
    for name, tensor in loop.model_state().items():
        assert torch.equal(arrays.value()[name], tensor)


def test_arrays_that_cannot_be_written_are_read():
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    average = wima.ArrayWindow(2)
    average.update(array)
    np.testing.assert_array_equal(average.value(), array)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([{"a": np.ones(2)}, {"b": np.ones(2)}], r"\['a'\] was in the first value"),
        ([{"a": 1.0}, {"a": 1.0, "b": 1.0}], r"\['b'\] was not in the first value"),
        ([[np.ones(2)], [np.ones(3)]], r"\[0\] was float64 \(2,\).*is now float64 \(3,\)"),
        ([np.ones(2), np.ones(2, "f4")], r"was float64 \(2,\).*is now float32"),
        ([[1, "x"]], "no floating-point array in list"),
        ([{"z": np.ones(2, complex)}], r"\['z'\] is complex128; average its real and"),
        ([torch.ones(2, dtype=torch.complex64)], "is torch.complex64"),
        ([np.ones(2, np.longdouble)], "expected float16, bfloat16, float32 or float64"),
        ([np.ones(2, ">f4")], "expected float16"),
    ],
)
def test_mistakes_are_named(values, message):
    average = wima.ArrayWindow(2)
    for value in values[:-1]:
        average.update(value)
    with pytest.raises(wima.UsageError, match=message):
        average.update(values[-1])


def test_a_value_needs_an_update_and_a_window_that_is_kept():
    average = wima.ArrayWindow(2, every=2)
    average.update(1.0)
    with pytest.raises(wima.UsageError, match="There is no value yet"):
        average.value()
    average.update(1.0)
    with pytest.raises(wima.UsageError, match="window=3: only the last 2 models"):
        average.value(3)


JAX = """
import sys
import wima
average = wima.ArrayWindow(window=3)
assert "jax" not in sys.modules
import jax, jax.numpy as jnp
assert jax.devices()[0].platform == "cpu"
kinds = {"w": jnp.float32, "half": jnp.bfloat16, "n": jnp.int32}
for k in range(5):
    average.update({name: (jnp.full((2, 2), k, dtype=kind),) for name, kind in kinds.items()})
value = average.value()
for name, kind in kinds.items():
    (array,) = value[name]
    assert isinstance(array, jax.Array) and array.dtype == kind, (name, type(array), array.dtype)
    assert (array == (4 if name == "n" else 3)).all(), array
print("jax", jax.__version__)
"""


def test_arrays_of_jax_come_back_as_arrays_of_jax():
    python = sys.executable if find_spec("jax") else str(FEDJAX)
    if not Path(python).exists():
        pytest.skip("JAX is not installed, here or by the benchmarks")
    paths = [str(ROOT), *(p for p in sys.path if p.endswith("site-packages"))]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}
    assert printed(JAX, python=python, **variables).startswith("jax")

"""Arrays from other machines are read only if their headers fit what was sent."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord
from flwr.common import Parameters
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp.strategy import FedAvg

from tests.helpers.npy import npy
from wima import WIMA, RunError
from wima.flower import averaged, averaged_legacy
from wima.flower.arrays import from_bytes, to_tensors

HUGE = npy(f"({10**13},)")
HOSTILE = {
    "huge": (HUGE, f"expected {4 * 10**13} bytes"),
    "overflow": (npy(f"({2**62}, 4)"), f"expected {2**66} bytes"),
    "short": (npy("(3,)"), r"expected 12 bytes for float32 of shape \(3,\), got 8"),
    "long": (npy("(1,)"), "expected 4 bytes"),
    "negative": (npy("(-1, -2)"), r"shape \(-1, -2\)"),
    "minus-one": (npy("(-1,)"), r"shape \(-1,\)"),
    "objects": (npy("(1,)", "'|O'"), "expected an array of numbers, got object"),
    "no-size": (npy(f"({10**13},)", "'|V0'", b""), "expected an array of numbers"),
    "nested": (npy("(1,)", "[('x', '<f4', (10000000000000,))]"), "cannot be read|of numbers"),
    "long-header": (npy("(" + "1, " * 40_000 + ")", version=2), "cannot be read: .*large"),
    "deep-header": (npy("(" * 5_000), "cannot be read"),
    "no-tuple": (npy("7"), "cannot be read"),
    "version": (npy("(2,)", version=3), "cannot be read"),
    "archive": (b"PK\x03\x04" + bytes(60), "cannot be read"),
    "empty": (b"", "cannot be read"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_header_that_does_not_fit_is_refused_before_memory_is_reserved(case, monkeypatch):
    monkeypatch.setattr(np, "load", None)
    data, reason = HOSTILE[case]
    with pytest.raises(ValueError, match=reason) as error:
        from_bytes(data)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2", "<i8", "|u1", "|b1", "<c8"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_comes_back_as_it_was(dtype, shape, order):
    array = np.ones(shape, dtype, order=order)
    buffer = BytesIO()
    np.save(buffer, array)
    found = from_bytes(buffer.getvalue())
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes(order) == array.tobytes(order)


def test_all_readers_of_arrays_check_headers():
    record = ArrayRecord({"w": Array("float32", (2,), "numpy.ndarray", HUGE)})
    with pytest.raises(ValueError, match="expected 40000000000000 bytes"):
        to_tensors(record)
    with pytest.raises(RunError, match="Round 3: the model cannot be read: expected"):
        averaged(FedAvg(), WIMA(2)).averaging.add(3, record)
    with pytest.raises(RunError, match="Round 3: the model cannot be read: expected"):
        averaged_legacy(LegacyFedAvg(), WIMA(2)).averaging.add(3, Parameters([HUGE], "numpy"))
    other = ArrayRecord({"w": Array("float32", (2,), "pickle", HUGE)})
    with pytest.raises(ValueError, match="NumPy's format, got 'pickle'"):
        to_tensors(other)

"""A window that chooses itself goes on where it was saved."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

import wima
from tests.helpers.gradients import AUTO, KINDS, step
from tests.helpers.modules import Odd, assert_bits


def through_torch_save(first: wima.WindowAverage, second: wima.WindowAverage, _: Path) -> None:
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))


def through_files(first: wima.WindowAverage, second: wima.WindowAverage, folder: Path) -> None:
    first.save(folder / "saved")
    second.load(folder / "saved")


def directly(first: wima.WindowAverage, second: wima.WindowAverage, _: Path) -> None:
    second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("move", [through_torch_save, through_files, directly])
@pytest.mark.parametrize(("every", "stop"), [(1, 25), (3, 25), (3, 27), (5, 2)])
def test_an_average_resumes_to_the_bit(move, every, stop, tmp_path):
    torch.manual_seed(0)
    model = Odd(KINDS)
    whole, first, second = (AUTO(model, every=every) for _ in range(3))
    for _ in range(stop):
        step(model)
        whole.update()
        first.update()
    move(first, second, tmp_path)
    for _ in range(40):
        step(model)
        for average in (whole, second, first):  # the first goes on too: nothing is shared
            average.update()
        assert second.n_averaged == whole.n_averaged == first.n_averaged
    assert whole.n_averaged > 1
    for average in (second, first):
        assert_bits(average.model_state(), whole.model_state())
        assert_bits(average.state_dict()["rows"], whole.state_dict()["rows"])


def test_saving_again_replaces_what_was_saved(tmp_path):
    torch.manual_seed(0)
    model = Odd(KINDS)
    average = AUTO(model)
    for _ in range(3):
        for _ in range(10):
            step(model)
            average.update()
        average.save(tmp_path / "saved")
        again = AUTO(model)
        again.load(tmp_path / "saved")
        assert_bits(again.model_state(), average.model_state())
        files = [p.name for p in (tmp_path / "saved").iterdir()]
        assert len(files) == 1 + len(average.state_dict()["rows"])


def test_what_was_saved_of_another_kind_of_window_or_model_or_damaged_is_refused(tmp_path):
    model = Odd(KINDS)
    average, ring = AUTO(model), wima.WindowAverage(model, 3)
    for one, name in ((average, "auto"), (ring, "ring")):
        step(model)
        one.update()
        one.save(tmp_path / name)
    for load in (lambda a, b, n: a.load(tmp_path / n), lambda a, b, _: a.load_state_dict(b)):
        with pytest.raises(
            wima.UsageError, match=r"saved state has the past models .*; expected the sums of"
        ):
            load(average, ring.state_dict(), "ring")
        with pytest.raises(
            wima.UsageError, match=r"saved state has the sums .*; expected the past models"
        ):
            load(ring, average.state_dict(), "auto")
        with pytest.raises(wima.UsageError, match="t1 is not averaged, but was"):
            load(AUTO(Odd(KINDS[:1])), average.state_dict(), "auto")
    largest = max((tmp_path / "auto").glob("auto-*"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    with pytest.raises(wima.RunError, match="damaged"):
        average.load(tmp_path / "auto")

"""A window average that was saved goes on where it was; other people's files are safe."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import nn

import wima
from tests.helpers.modules import Odd, assert_bits
from wima.training.window_average import MANIFEST


def resumed(model: nn.Module, move, **options) -> None:
    """Stop after 13 steps, move the state to another average, go on: the same as without a stop."""
    whole = wima.WindowAverage(model, [3, 6], every=2)
    first = wima.WindowAverage(model, [3, 6], every=2)
    for average in ([whole, first],) * 13:
        model.step()
        for one in average:
            one.update()
    second = wima.WindowAverage(model, [3, 6], every=2, **options)
    move(first, second)
    for _ in range(5):
        model.step()
        whole.update()
        second.update()
    for window in range(1, 7):
        assert_bits(second.model_state(window), whole.model_state(window))


def through_torch_save(first: wima.WindowAverage, second: wima.WindowAverage) -> None:
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.load_state_dict(torch.load(buffer, weights_only=True))


KINDS = [((5,), torch.float32, "trained"), ((2, 2), torch.float64, "trained")]


@pytest.mark.parametrize("mapped", [False, True])
def test_an_average_goes_on_where_its_state_was_taken_or_saved(tmp_path, mapped):
    options = {"folder": tmp_path / "rows"} if mapped else {}
    resumed(Odd(KINDS), through_torch_save, **options)

    def through_files(first: wima.WindowAverage, second: wima.WindowAverage) -> None:
        first.save(tmp_path / "saved")
        second.load(tmp_path / "saved")

    resumed(Odd(KINDS), through_files, **options)


def test_saving_again_writes_only_what_is_new(tmp_path):
    model = Odd(KINDS)
    average = wima.WindowAverage(model, 4)
    for steps in (3, 2, 1, 4, 9):
        for _ in range(steps):
            model.step()
            average.update()
        old = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("a/ring-*")}
        average.save(tmp_path / "a")
        new = {p.name: p.stat().st_mtime_ns for p in tmp_path.glob("a/ring-*")}
        assert all(new[name] == old[name] for name in new.keys() & old.keys())
        assert bool(new.keys() & old.keys()) == (steps < 4 and bool(old))
        fresh = wima.WindowAverage(model, 4)
        fresh.load(tmp_path / "a")
        assert_bits(fresh.model_state(), average.model_state())
    average.save(tmp_path / "b")  # all of it, elsewhere
    average.load_state_dict(wima.WindowAverage(model, 4).state_dict())
    average.update()
    average.save(tmp_path / "b")
    assert len(list(tmp_path.glob("b/ring-*"))) == 2  # one dtype each, and nothing stale


def test_saving_never_removes_what_is_not_its_own(tmp_path):
    average = wima.WindowAverage(Odd(KINDS), 4)
    average.update()
    average.save(tmp_path / "mine")
    other = wima.WindowAverage(Odd(KINDS), 4)
    with pytest.raises(wima.UsageError, match="exists: use another folder, or overwrite=True"):
        other.save(tmp_path / "mine")
    other.update()
    other.save(tmp_path / "mine", overwrite=True)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(wima.UsageError, match=r"also contains m.*: use a separate folder"):
        other.save(tmp_path, overwrite=True)
    with pytest.raises(wima.UsageError, match="is a file"):
        other.save(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"


def test_a_shorter_window_can_be_loaded_and_a_longer_one_cannot(tmp_path):
    model = Odd(KINDS)
    average = wima.WindowAverage(model, 6)
    for _ in range(10):
        model.step()
        average.update()
    average.save(tmp_path / "saved")
    for load in (
        lambda a: a.load(tmp_path / "saved"),
        lambda a: a.load_state_dict(average.state_dict()),
    ):
        shorter = wima.WindowAverage(model, 4)
        load(shorter)
        assert_bits(shorter.model_state(3), average.model_state(3))
        with pytest.raises(wima.UsageError, match="window is 7, but only the last 6 models"):
            load(wima.WindowAverage(model, 7))


def test_what_was_saved_of_another_model_or_damaged_is_refused(tmp_path):
    average = wima.WindowAverage(Odd(KINDS), 3)
    average.update()
    average.save(tmp_path / "saved")
    other = wima.WindowAverage(Odd([((4,), torch.float32, "trained"), *KINDS[1:]]), 3)
    with pytest.raises(wima.UsageError, match=r"t0 is float32 \[4\], but was float32 \[5\]"):
        other.load(tmp_path / "saved")
    with pytest.raises(wima.UsageError, match="t1 is not averaged, but was"):
        wima.WindowAverage(Odd(KINDS[:1]), 3).load(tmp_path / "saved")
    with pytest.raises(wima.UsageError, match="contains no window average"):
        average.load(tmp_path)
    with pytest.raises(wima.UsageError, match="format None"):
        average.load_state_dict({})
    damage(next((tmp_path / "saved").glob("ring-*")))
    with pytest.raises(wima.RunError, match="damaged"):
        wima.WindowAverage(Odd(KINDS), 3).load(tmp_path / "saved")
    damage(tmp_path / "saved" / MANIFEST)
    with pytest.raises(wima.RunError, match="damaged"):
        wima.WindowAverage(Odd(KINDS), 3).load(tmp_path / "saved")


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

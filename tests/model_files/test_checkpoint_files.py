"""`wima average`: the mean of files is the mean of models, and nothing bad passes unnoticed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file

import wima
from tests.helpers.checkpoints import assert_same, load, model, naive, save, small, without
from tests.helpers.commands import printed
from wima.averaging import Averages
from wima.core.errors import UsageError
from wima.model_files import mean as mean_module
from wima.model_files.mean import Decay, Window, average_files
from wima.model_files.read import select
from wima.model_files.tensors import decode, encode

# The mean.


@pytest.mark.parametrize("source", [".safetensors", ".pt", ".npz"])
@pytest.mark.parametrize("target", [".safetensors", ".pt", ".npz"])
def test_the_mean_of_files_is_that_of_models_whatever_the_format(tmp_path, source, target):
    models = [model(step) for step in range(8)]
    if ".npz" in (source, target):  # numpy has no bfloat16
        models = [without(m, "brain") for m in models]
    files = [save(tmp_path / f"step_{n}{source}", m) for n, m in enumerate(models)]
    done = average_files(files, tmp_path / f"mean{target}", Window(5))
    assert done.files == files[-5:]
    assert_same(load(tmp_path / f"mean{target}"), naive(models[-5:]))


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".npz"])
def test_pieces_and_groups_change_nothing(tmp_path, monkeypatch, ending):
    models = [without(model(step), "brain") for step in range(4)]
    files = [save(tmp_path / f"step_{n}{ending}", m) for n, m in enumerate(models)]
    monkeypatch.setattr(mean_module, "PIECE", 3)
    monkeypatch.setattr(mean_module, "GROUP", 8)
    shares: list[float] = []
    average_files(files, tmp_path / f"mean{ending}", progress=shares.append)
    assert_same(load(tmp_path / f"mean{ending}"), naive(models))
    assert shares == sorted(shares) and shares[-1] == 1 and len(shares) > 15


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    data=st.lists(
        st.lists(FLOATS, min_size=3, max_size=3),
        min_size=1,
        max_size=12,
    )
)
@settings(deadline=None, max_examples=40)
def test_files_give_the_bits_of_the_loop_for_any_numbers_until_its_window_slides(
    tmp_path_factory, data
):
    assert_bits_of_the_loop(tmp_path_factory.mktemp("files"), torch.tensor(data), len(data))


@given(
    data=st.lists(
        st.lists(st.integers(-(2**24), 2**24), min_size=3, max_size=3), min_size=1, max_size=12
    ),
    window=st.integers(1, 12),
)
@settings(deadline=None, max_examples=40)
def test_files_give_the_bits_of_the_loop_for_any_window_if_sums_are_exact(
    tmp_path_factory, data, window
):
    w = torch.tensor(data, dtype=torch.float32) * 2.0**-20
    assert_bits_of_the_loop(tmp_path_factory.mktemp("files"), w, window)


def test_files_give_the_bits_of_the_loop_on_a_long_walk_with_a_window_that_slides(tmp_path):
    steps = torch.randn(150, 2000, generator=torch.Generator().manual_seed(0))
    assert_bits_of_the_loop(tmp_path, 0.1 * steps.cumsum(dim=0), 100)


def assert_bits_of_the_loop(folder: Path, models: torch.Tensor, window: int) -> None:
    watch = Averages({"mean": wima.WIMA(window)}, models[0])
    files = []
    for step, w in enumerate(models):
        watch.update(w)
        files.append(save(folder / f"step_{step}.safetensors", {"w": w.clone()}))
    average_files(files, folder / "mean.safetensors", Window(window), force=True)
    got, expected = load(folder / "mean.safetensors")["w"], watch.vector("mean")
    assert torch.equal(got.view(torch.int32), expected.view(torch.int32))
    shutil.rmtree(folder)


def test_the_default_is_the_plain_mean_bit_for_bit(cli, tmp_path):
    models = [model(step) for step in range(7)]
    for n, tensors in enumerate(models):
        save(tmp_path / f"step_{n}.safetensors", tensors)
    default, linear = tmp_path / "default.safetensors", tmp_path / "linear.safetensors"
    options = ["average", "step_*.safetensors", "--window", "6", "--out"]
    assert cli(*options, default.name)[0] == 0
    assert cli(*options, linear.name, "--shape", "linear")[0] == 0  # the only one that is left
    assert default.read_bytes() == linear.read_bytes()
    assert_same(load(linear), naive(models[-6:]))


def test_ema_of_files_is_that_of_the_loop(tmp_path):
    models = torch.randn(9, 50, generator=torch.Generator().manual_seed(1))
    watch = Averages({"ema": wima.EMA(0.8)}, models[0])
    for w in models:
        watch.update(w)
    files = [save(tmp_path / f"{n}.pt", {"w": w.clone()}) for n, w in enumerate(models)]
    average_files(files, tmp_path / "ema.pt", Decay(0.8))
    torch.testing.assert_close(load(tmp_path / "ema.pt")["w"], watch.vector("ema"))


def test_bfloat16_and_float16_are_rounded_as_torch_rounds_them():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, generator=draw, dtype=torch.float64) * 10.0 ** torch.arange(
        -10, 10
    ).repeat(1000)
    x = torch.cat([x, torch.tensor([0.0, -0.0, float("inf"), float("-inf"), 1 + 2.0**-8, 65520.0])])
    for dtype, code, bits in ((torch.bfloat16, "BF16", torch.int16), (torch.float16, "F16", None)):
        with np.errstate(over="ignore"):
            stored = encode(x.numpy(), code)
        expected = x.to(dtype)
        assert np.array_equal(decode(stored, code).astype(np.float64), expected.double().numpy())
        if bits:
            assert np.array_equal(stored, expected.view(bits).numpy().view(np.uint16))
    assert np.isnan(decode(encode(np.array([np.nan]), "BF16"), "BF16")).all()


def test_infinities_and_nan_pass_as_in_the_loop(tmp_path):
    values = torch.tensor([[1.0, float("inf"), float("nan")], [3.0, 1.0, 1.0]])
    assert_bits_of_the_loop(tmp_path, values[:, :2].clone(), 2)
    tmp_path.mkdir()
    files = [save(tmp_path / f"{n}.npz", {"w": w}) for n, w in enumerate(values)]
    average_files(files, tmp_path / "mean.npz")
    assert load(tmp_path / "mean.npz")["w"].isnan().tolist() == [False, False, True]


def test_part_averages_some_tensors_and_takes_the_others_from_the_newest(tmp_path):
    files = [save(tmp_path / f"step_{n}.pt", model(n)) for n in range(3)]
    average_files(files, tmp_path / "mean.pt", part=["layer.*"])
    expected, got = naive([model(n) for n in range(3)]), load(tmp_path / "mean.pt")
    for name, newest in model(2).items():
        wanted = expected[name] if name.startswith("layer.") else newest
        assert torch.equal(got[name], wanted), name
    with pytest.raises(UsageError, match=r"--part head.* matches no tensor"):
        average_files(files, tmp_path / "other.pt", part=["head.*"])


# Which files.


def test_files_come_in_the_order_of_their_numbers_and_once(tmp_path):
    for n in (1, 2, 9, 10, 11, 100):
        save(tmp_path / f"epoch={n // 10}-step={n}.pt", small(n))
    (tmp_path / "last.pt").symlink_to(tmp_path / "epoch=10-step=100.pt")
    pattern, one = str(tmp_path / "epoch*.pt"), str(tmp_path / "epoch=0-step=9.pt")
    files = select([one, pattern, str(tmp_path / "last.pt")])
    assert [int(file.stem.rpartition("=")[2]) for file in files] == [1, 2, 9, 10, 11, 100]


def test_last_and_every_count_back_from_the_newest(tmp_path):
    for n in range(10):
        save(tmp_path / f"{n}.pt", small(n))
    pattern = [str(tmp_path / "*.pt")]
    assert [f.stem for f in select(pattern, every=3)] == ["0", "3", "6", "9"]
    assert [f.stem for f in select(pattern, every=4, last=6)] == ["5", "9"]
    assert [f.stem for f in select(pattern, last=2)] == ["8", "9"]


def test_order_can_be_that_of_time_or_as_given(tmp_path):
    names = ["c", "a", "b"]
    for age, name in enumerate(names):
        os.utime(save(tmp_path / f"{name}.pt", small(1)), (age, age))
    assert [f.stem for f in select([str(tmp_path / "*.pt")], order="time")] == names
    given_order = [str(tmp_path / f"{name}.pt") for name in ("b", "c", "a")]
    assert [f.stem for f in select(given_order, order="given")] == ["b", "c", "a"]
    with pytest.raises(UsageError, match="--order must be one of number, time, given"):
        select(given_order, order="size")


# The command.


def test_the_command_takes_quoted_patterns_and_says_what_was_used(cli, tmp_path):
    for n in range(1, 13):
        save(tmp_path / "run" / f"step_{n}.safetensors", small(n))
    code, out, err = cli("average", "run/*.safetensors", "--window", "3", "--out", "mean.pt")
    assert (code, err) == (0, "")
    assert "W = 3, 3 checkpoints, run/step_10.safetensors to run/step_12.safetensors" in out
    assert "6 numbers in 2 tensors" in out
    assert_same(load(tmp_path / "mean.pt"), small(11))
    code, out, _ = cli("average", "run/*.safetensors", "--out", "all.npz")
    assert (
        code == 0 and "The window is 100, but there are only 12 checkpoints: all were used." in out
    )
    assert load(tmp_path / "all.npz")["w"].tolist() == [6.5] * 4
    assert cli("average", "run/*", "--ema", "0.5", "--last", "2", "--out", "ema.pt")[0] == 0
    assert load(tmp_path / "ema.pt")["w"].tolist() == [11.5] * 4


MEASURED = """
import sys
from pathlib import Path
from wima.model_files.mean import Window, average_files

def peak():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024

before = peak()
average_files([Path(f"{n}.safetensors") for n in range(3)], Path("m.npz"), Window(3))
print("torch" in sys.modules, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_safetensors_and_npz_are_averaged_without_torch_in_little_memory(tmp_path, monkeypatch):
    big = {"w": torch.zeros(4_000_000), "v": torch.zeros(3_000_000)}
    for n in range(3):
        save(tmp_path / f"{n}.safetensors", {name: t + n for name, t in big.items()})
    monkeypatch.chdir(tmp_path)
    torch_loaded, grown = printed(MEASURED).split()
    assert torch_loaded == "False"
    accumulators = 8 * mean_module.GROUP
    assert int(grown) < accumulators + 20e6 < 2 * 16e6 + 200e6
    assert load(tmp_path / "m.npz")["w"].unique().tolist() == [1.0]


def test_a_folder_stands_for_all_checkpoints_in_it(cli, tmp_path):
    (tmp_path / "snapshots").mkdir()
    for t in (100, 200, 300):
        w = torch.full((2,), float(t))
        save(tmp_path / f"snapshots/round-{t:06}.safetensors", {"w": w})
    (tmp_path / "snapshots/notes.txt").write_text("not a checkpoint")
    assert cli("average", "snapshots", "--window", "2", "--out", "y.safetensors")[0] == 0
    assert load(tmp_path / "y.safetensors")["w"].tolist() == [250, 250]
    (tmp_path / "empty").mkdir()
    code, _, err = cli("average", "empty", "--out", "z.pt")
    assert code == 2 and "The folder empty contains none of model.safetensors.index.json" in err


def test_a_snapshot_of_version_0_1_0_is_read_as_the_mean_of_its_rounds(tmp_path):
    for first, last in ((1, 4), (5, 6)):
        about = {"first": first, "last": last, "dtype": "torch.float32", "sha256": "..."}
        total = {"w": torch.full((2,), float(sum(range(first, last + 1))), dtype=torch.float64)}
        path = tmp_path / f"{last:09}.safetensors"
        save_file(total, path, {"about": json.dumps(about)})
    average_files([path], tmp_path / "mean.npz")
    assert load(tmp_path / "mean.npz")["w"].tolist() == [5.5, 5.5]

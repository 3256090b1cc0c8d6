"""What `wima average` refuses: nothing is executed, and nothing is left half-written."""

from __future__ import annotations

import os
import pickle
import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.checkpoints import assert_same, load, save, small, without
from wima.model_files.mean import average_files


def folder_is(folder: Path, names: set[str]) -> bool:
    return {path.name for path in folder.iterdir()} == names


class Malicious:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


def evil(path: Path, trace: Path, kind: str) -> None:
    content = {"model": small(1), "callback": Malicious(trace)}
    if kind == "pickle":
        path.write_bytes(pickle.dumps(content))
    elif kind == "npz":
        np.savez(path, w=np.array([Malicious(trace)], dtype=object), allow_pickle=True)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind == "zip")


@pytest.mark.parametrize(
    ("name", "kind"), [("a.pt", "zip"), ("a.ckpt", "old"), ("a.bin", "pickle"), ("a.npz", "npz")]
)
def test_a_file_that_wants_to_run_code_is_refused_and_nothing_runs(cli, tmp_path, name, kind):
    trace = tmp_path / "trace"
    evil(tmp_path / name, trace, kind)
    code, out, err = cli("average", name, "--out", "mean.safetensors")
    assert code == 2 and f"Error: {name}" in err and "Traceback" not in out + err
    assert "weights_only" not in err, "no advice to load it after all"
    if kind in ("zip", "old"):
        assert ".system, and such a file can run" in err and "Nothing was executed" in err
    assert folder_is(tmp_path, {name})
    if kind == "zip":  # the file is as bad as it looks
        torch.load(name, weights_only=False)
        assert trace.exists()


def other(change: str) -> dict[str, torch.Tensor]:
    changes = {
        "lacks": without(small(2), "b"),
        "more": {**small(2), "c": torch.ones(1)},
        "shape": {**small(2), "w": torch.ones(2, 2)},
        "dtype": {**small(2), "w": torch.ones(4).double()},
    }
    return changes[change]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("lacks", ["step_2", "lacks 'b', which", "step_3"]),
        ("more", ["step_2", "has 'c', which", "step_3", "lacks"]),
        ("shape", ["step_2", "tensor 'w' has shape (2, 2), but (4,) in"]),
        ("dtype", ["step_2", "tensor 'w' has dtype F64, but F32 in"]),
    ],
)
@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".npz"])
def test_checkpoints_of_different_models_are_refused(cli, tmp_path, change, words, ending):
    names = {save(tmp_path / f"step_{n}{ending}", small(n)).name for n in (1, 3)}
    names.add(save(tmp_path / f"step_2{ending}", other(change)).name)
    code, out, err = cli("average", f"step_*{ending}", "--out", "mean.pt")
    assert code == 2 and "Traceback" not in out + err
    assert [word for word in words if word not in err] == []
    assert folder_is(tmp_path, names)


@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".npz"])
@pytest.mark.parametrize("damage", ["cut", "text", "empty", "folder of that name", "flipped"])
def test_a_damaged_file_is_named_and_nothing_is_written(cli, tmp_path, ending, damage):
    save(tmp_path / f"step_1{ending}", small(1))
    bad = save(tmp_path / f"step_2{ending}", small(2))
    content = bad.read_bytes()
    bad.unlink()
    if damage == "folder of that name":
        bad.mkdir()
    else:
        flipped = bytes([*(255 - b for b in content[:64]), *content[64:]])
        changed = {"cut": content[: len(content) * 2 // 3], "text": b"hello\n", "empty": b""}
        bad.write_bytes(changed.get(damage, flipped))
    code, out, err = cli("average", f"*{ending}", "--out", "mean.safetensors")
    assert code == 2 and f"step_2{ending}" in err and "Traceback" not in out + err
    assert folder_is(tmp_path, {f"step_1{ending}", f"step_2{ending}"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none*.pt", "--out", "m.pt"], ["No file matches 'none*.pt'"]),
        (["none.pt", "--out", "m.pt"], ["Cannot read none.pt", "does not exist"]),
        (["step_1.pt", "--out", "m.txt"], ["--out m.txt", ".safetensors, .npz, .pt"]),
        (["note.txt", "--out", "m.pt"], ["note.txt: unknown kind", ".safetensors"]),
        (["step_1.pt", "--out", "m.pt", "--window", "0"], ["--window", "positive integer, got 0"]),
        (["step_1.pt", "--out", "m.pt", "--every", "0"], ["--every", "positive integer, got 0"]),
        (["step_1.pt", "--out", "m.pt", "--last", "-1"], ["--last", "positive integer, got -1"]),
        (["step_1.pt", "--out", "m.pt", "--ema", "1"], ["--ema", "[0, 1)"]),
        (
            ["step_1.pt", "--out", "m.pt", "--shape", "sqrt"],
            ["--shape='sqrt' was removed", "omit it for the mean"],
        ),
        (["step_1.pt", "--out", "old.pt"], ["old.pt already exists", "--force"]),
        (["step_*.pt", "--out", "step_1.pt", "--force"], ["is one of the checkpoints"]),
        (["int.npz", "text.npz", "--out", "m.npz"], ["text.npz", "'t'", "cannot be averaged"]),
        (["brain.pt", "--out", "m.npz"], [".npz cannot store 'w', which is bfloat16"]),
    ],
)
def test_mistakes_end_with_2_and_change_no_file(cli, tmp_path, arguments, words):
    save(tmp_path / "step_1.pt", small(1))
    save(tmp_path / "brain.pt", {"w": torch.ones(2).bfloat16()})
    np.savez(tmp_path / "int.npz", t=np.arange(3))
    np.savez(tmp_path / "text.npz", t=np.array(["a"]))
    for name in ("old.pt", "note.txt"):
        (tmp_path / name).write_text("mine")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    code, out, err = cli("average", *arguments)
    assert code == 2 and "Error: " in err and "Traceback" not in out + err
    assert [word for word in words if word not in err] == []
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_force_replaces_an_output_that_exists(cli, tmp_path):
    save(tmp_path / "step_1.pt", small(1))
    (tmp_path / "old.npz").write_text("mine")
    assert cli("average", "step_1.pt", "--out", "old.npz", "--force")[0] == 0
    assert_same(load(tmp_path / "old.npz"), small(1))


@pytest.mark.parametrize(
    "out", ["gone/mean.pt", "note.txt/mean.pt", "/proc/mean.pt", "x" * 300 + ".pt"]
)
def test_an_output_that_cannot_be_written_is_told(cli, tmp_path, out):
    save(tmp_path / "step_1.pt", small(1))
    (tmp_path / "note.txt").write_text("mine")
    code, _, err = cli("average", "step_1.pt", "--out", out)
    assert code == 1 and f"Cannot write {out}" in err and "Traceback" not in err
    assert folder_is(tmp_path, {"step_1.pt", "note.txt"})


@pytest.fixture
def full_disk():
    """No file may grow beyond 100 kB: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


# 24,900 numbers take less than that, but not so what torch.save makes of them.
@pytest.mark.parametrize(
    ("ending", "numbers"),
    [(".safetensors", 100_000), (".npz", 100_000), (".pt", 100_000), (".pt", 24_900)],
)
def test_a_full_disk_leaves_nothing_half_written(cli, full_disk, tmp_path, ending, numbers):
    save(tmp_path / "step_1.safetensors", {"w": torch.randn(numbers)})
    (tmp_path / f"mean{ending}").write_text("old")
    full_disk()
    code, _, err = cli("average", "step_1.safetensors", "--out", f"mean{ending}", "--force")
    assert code == 1 and f"Error: Cannot write mean{ending}: " in err
    assert (tmp_path / f"mean{ending}").read_text() == "old"
    assert folder_is(tmp_path, {"step_1.safetensors", f"mean{ending}"})


def test_an_interruption_leaves_nothing_behind(tmp_path):
    files = [save(tmp_path / f"{n}.npz", small(n)) for n in range(3)]

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        average_files(files, tmp_path / "mean.npz", progress=interrupt)
    assert folder_is(tmp_path, {f"{n}.npz" for n in range(3)})

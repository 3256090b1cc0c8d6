"""Checkpoints as people and frameworks write them."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.helpers.checkpoints import assert_same, load, model, naive, save, small
from wima.core.errors import UsageError
from wima.model_files.mean import Window, average_files
from wima.model_files.read import select


def test_metadata_of_the_newest_file_is_kept_and_the_origin_is_told(tmp_path):
    files = [save(tmp_path / f"step_{n}.safetensors", small(n)) for n in range(3)]
    average_files(files, tmp_path / "mean.safetensors", Window(2))
    with safe_open(tmp_path / "mean.safetensors", "pt") as file:
        assert file.metadata() == {
            "format": "pt",
            "step": "step_2",
            "wima": "W = 2: 2 files, step_1.safetensors to step_2.safetensors",
        }


def shards(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A model in two files with an index, as Hugging Face writes it."""
    names = list(tensors)
    where = {}
    for n, some in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{n}-of-00002.safetensors"
        save(folder / file, {name: tensors[name] for name in some})
        where.update(dict.fromkeys(some, file))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return index


def test_models_in_several_files_are_read_by_their_index_or_folder(tmp_path):
    for n in range(9, 12):
        shards(tmp_path / f"checkpoint-{n}", model(n))
    expected = naive([model(n) for n in range(9, 12)])
    for pattern in ("checkpoint-*", "checkpoint-*/*.index.json"):
        files = select([str(tmp_path / pattern)])
        assert [file.parent.name for file in files] == [f"checkpoint-{n}" for n in (9, 10, 11)]
        average_files(files, tmp_path / "mean.safetensors", force=True)
        assert_same(load(tmp_path / "mean.safetensors"), expected)
    with pytest.raises(
        UsageError, match="one part of a model in several files; expected its index"
    ):
        select([str(tmp_path / "checkpoint-9" / "*.safetensors")])


@pytest.mark.parametrize(
    ("weight_map", "words"),
    [
        ({"w": "../other.safetensors"}, "files in the folder of the index"),
        ({"w": "gone.safetensors"}, "Cannot read .*gone.safetensors"),
        ({"x": "one.safetensors"}, "has no tensor 'x'"),
        (["w"], "not an index of a sharded model"),
    ],
)
def test_an_index_that_is_wrong_is_refused(tmp_path, weight_map, words):
    save(tmp_path / "one.safetensors", small(1))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(UsageError, match=words):
        average_files([index], tmp_path / "mean.npz")


def test_pytorch_files_are_averaged_where_they_hold_the_weights_and_keep_the_rest(tmp_path):
    def whole(n: int) -> dict:
        optimizer = {"state": {"momentum": torch.ones(2) * n}, "lr": 0.1}
        return {"model": OrderedDict(model(n)), "optimizer": optimizer, "epoch": n}

    files = []
    for n in range(3):
        torch.save(whole(n), tmp_path / f"epoch={n}.ckpt")
        files.append(tmp_path / f"epoch={n}.ckpt")
    expected = naive([model(n) for n in range(3)])
    average_files(files, tmp_path / "mean.ckpt")
    got = torch.load(tmp_path / "mean.ckpt")
    assert got["epoch"] == 2 and got["optimizer"]["state"]["momentum"].tolist() == [2, 2]
    assert list(got["model"]) == list(model(2))
    assert_same(got["model"], expected)
    average_files(files, tmp_path / "mean.safetensors")
    assert_same(load(tmp_path / "mean.safetensors"), expected)
    average_files(files, tmp_path / "momentum.pt", key="optimizer.state")
    assert torch.load(tmp_path / "momentum.pt")["optimizer"]["state"]["momentum"][0] == 1


def test_a_pytorch_file_whose_weights_are_not_found_asks_for_the_key(tmp_path):
    torch.save({"generator": small(1), "critic": small(2), "step": 3}, tmp_path / "gan.pt")
    files = [tmp_path / "gan.pt"]
    with pytest.raises(UsageError, match="--key; the file contains generator, critic, step"):
        average_files(files, tmp_path / "mean.pt")
    with pytest.raises(UsageError, match="no tensors under --key step"):
        average_files(files, tmp_path / "mean.pt", key="step")
    average_files([str(file) for file in files], str(tmp_path / "critic.npz"), key="critic")
    assert_same(load(tmp_path / "critic.npz"), small(2))


def test_tensors_without_names_are_refused(tmp_path):
    torch.save({0: torch.ones(1), 1: torch.ones(2)}, tmp_path / "list.pt")
    with pytest.raises(UsageError, match="expected strings as tensor names, got 0"):
        average_files([tmp_path / "list.pt"], tmp_path / "mean.pt")


def test_pytorch_files_of_old_versions_and_of_views_are_read(tmp_path):
    files = []
    for n in range(2):
        tensors = {"w": torch.arange(6.0).reshape(2, 3).T * n, "b": torch.arange(9.0)[2:5] + n}
        files.append(tmp_path / f"{n}.pth")
        torch.save(tensors, files[-1], _use_new_zipfile_serialization=n == 0)
    average_files(files, tmp_path / "mean.pt")
    w = torch.arange(6.0).reshape(2, 3).T / 2
    assert_same(load(tmp_path / "mean.pt"), {"w": w, "b": torch.arange(9.0)[2:5] + 0.5})


def test_npz_files_may_be_compressed_of_other_byte_order_or_by_columns(tmp_path):
    x = np.arange(12.0).reshape(3, 4)
    arrays = [x, np.asfortranarray(x), x.astype(">f8"), x]
    writers = [np.savez, np.savez, np.savez, np.savez_compressed]
    for n, (array, writer) in enumerate(zip(arrays, writers, strict=True)):
        writer(tmp_path / f"{n}.npz", x=array * n)
    average_files([tmp_path / f"{n}.npz" for n in range(4)], tmp_path / "mean.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "mean.npz")["x"], 1.5 * x)

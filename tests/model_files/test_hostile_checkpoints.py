"""Files that lie about their size, or are no files: one sentence, without waiting or allocating."""

from __future__ import annotations

import json
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.helpers.checkpoints import assert_same, load, naive, save
from wima.core.errors import UsageError
from wima.model_files import mean as mean_module, tensors
from wima.model_files.mean import average_files
from wima.model_files.read import select


def npz_with_header(path: Path, header: str, numbers: bytes = bytes(40)) -> Path:
    """An .npz file of one array whose header reads so."""
    text = header.encode().ljust(118)
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w.npy", start + numbers)
    return path


def header(shape: str, dtype: str = "<f4") -> str:
    return f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"


def refused(path: Path, *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        average_files([path], path.with_name("mean.safetensors"))
    assert path.name in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ("(10000000000000,)", "<f4"),
        (f"({2**70},)", "<f4"),
        ("(-5,)", "<f4"),
        (f"(0, {2**70})", "<f4"),
        ("(10,", "<f4"),
        ("(10,)", "<f9"),
        ("(1000000000000,)", "<U0"),
    ],
)
def test_an_array_of_another_size_than_its_file_is_refused(tmp_path, shape, dtype):
    refused(npz_with_header(tmp_path / "a.npz", header(shape, dtype)), " 'w'")


def test_a_header_that_is_no_python_is_refused(tmp_path):
    refused(npz_with_header(tmp_path / "a.npz", "{'descr': '''"), "damaged", "array 'w'")


def test_a_small_file_does_not_unpack_to_gigabytes(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for n in range(3):
            archive.writestr(f"{n}.npy", bytes(100 * 2**20))
    refused(path, "would unpack to 314,572,800 bytes")


@pytest.mark.parametrize(
    ("size", "words"), [(2**31, "would unpack to"), (10**7, "damaged")], ids=["huge", "large"]
)
def test_members_that_cannot_be_what_they_declare_are_refused(tmp_path, size, words):
    path = npz_with_header(tmp_path / "a.npz", header("(2000000,)"))
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\1\2") + 24  # the size, in the list at the end
    content[at : at + 4] = struct.pack("<I", size)
    path.write_bytes(content)
    refused(path, words)


def test_a_compression_that_numpy_does_not_write_is_refused(tmp_path):
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("w.npy", bytes(100))
    refused(path, "cannot be unpacked")


def test_a_tensor_that_repeats_one_number_is_no_large_model(tmp_path):
    torch.save({"w": torch.zeros(1).expand(10**12)}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "would unpack to 4,000,000,000,000 bytes")
    torch.save({"w": torch.ones(1).expand(10)}, tmp_path / "b.pt")
    average_files([tmp_path / "b.pt"], tmp_path / "mean.pt")
    assert torch.equal(load(tmp_path / "mean.pt")["w"], torch.ones(10))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, device="meta"),
        torch.ones(2, 2).to_sparse(),
    ],
)
def test_tensors_without_numbers_in_memory_are_refused(tmp_path, tensor):
    torch.save({"w": tensor}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", "cannot be averaged")


def test_transposed_tensors_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(mean_module, "PIECE", 5)
    models = [{"w": torch.randn(7, 6).t(), "b": torch.randn(6, 4).bfloat16().t()} for _ in range(3)]
    files = [save(tmp_path / f"{n}.pt", model) for n, model in enumerate(models)]
    average_files(files, tmp_path / "mean.pt")
    assert_same(load(tmp_path / "mean.pt"), naive(models))


@pytest.mark.parametrize("ending", ["safetensors", "npz", "pt", "json"])
def test_a_pipe_is_refused_at_once(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    os.mkfifo(path)
    refused(path, "a pipe, a socket or a device")


def test_a_header_of_gigabytes_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 2**31) + b"{")
        file.truncate(2**32)  # takes no space
    refused(path, "header has 2,147,483,648")


@pytest.mark.parametrize("link", ["gone", "a.npz"])
def test_links_to_nothing_and_to_themselves_are_refused(tmp_path, link):
    (tmp_path / "a.npz").symlink_to(tmp_path / link)
    for order in ("number", "time"):
        with pytest.raises(UsageError, match=r"Cannot read .*a\.npz"):
            select([f"{tmp_path}/*.npz"], order)


def test_a_name_that_no_file_can_have_is_refused():
    with pytest.raises(UsageError, match="Cannot read"):
        select(["a" * 300 + ".npz"])


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/tmp/x", "..\\x", "C:\\x", "x\x1b[1m"])
def test_names_that_lead_out_of_a_folder_are_not_written(tmp_path, name):
    save_file({name: np.ones(2, np.float32)}, tmp_path / "a.safetensors")
    with pytest.raises(UsageError, match="cannot be written"):
        average_files([tmp_path / "a.safetensors"], tmp_path / "mean.npz")


@pytest.mark.parametrize("name", ["layer/w", "w:0", "a..b", "größe"])
def test_other_names_are_written(tmp_path, name):
    save_file({name: np.ones(2, np.float32)}, tmp_path / "a.safetensors")
    average_files([tmp_path / "a.safetensors"], tmp_path / "mean.npz")
    assert list(np.load(tmp_path / "mean.npz")) == [name]


def test_a_tensor_does_not_pass_as_metadata(tmp_path):
    np.savez(tmp_path / "a.npz", __metadata__=np.ones(2))
    with pytest.raises(UsageError, match="cannot be written"):
        average_files([tmp_path / "a.npz"], tmp_path / "mean.safetensors")


def test_an_index_of_any_content_is_refused(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    for where in ({"w": "x" * 300 + ".pt"}, {"w": "a\0.npz"}, {"w": "."}, {"w": [1]}, "[" * 10**5):
        text = where if isinstance(where, str) else json.dumps({"weight_map": where})
        path.write_text(text)
        with pytest.raises(UsageError):
            average_files([path], tmp_path / "mean.pt")


# Reading in order.


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("by_columns", [False, True])
def test_arrays_are_averaged_however_they_are_stored(tmp_path, monkeypatch, save_npz, by_columns):
    monkeypatch.setattr(mean_module, "PIECE", 5)
    monkeypatch.setattr(mean_module, "GROUP", 11)
    models = [
        {"w": torch.randn(7, 6), "n": torch.arange(9) + n, "v": torch.randn(5, 4).double()}
        for n in range(3)
    ]
    order = np.asfortranarray if by_columns else np.asarray
    for n, model in enumerate(models):
        save_npz(tmp_path / f"{n}.npz", **{k: order(t.numpy()) for k, t in model.items()})
    average_files([tmp_path / f"{n}.npz" for n in range(3)], tmp_path / "mean.npz")
    assert_same(load(tmp_path / "mean.npz"), naive(models))


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
def test_every_array_is_read_once(tmp_path, monkeypatch, save_npz):
    """The time of a large array grows with its size, not with its square."""
    monkeypatch.setattr(mean_module, "PIECE", 2**10)
    monkeypatch.setattr(mean_module, "GROUP", 2**12)
    x = np.random.default_rng(0).integers(0, 9, 2**16).astype(np.float32)
    save_npz(tmp_path / "a.npz", v=x, w=x)
    reads, read_array = [], tensors.npy.read_array
    count = lambda *given, **how: reads.append(0) or read_array(*given, **how)  # noqa: E731
    monkeypatch.setattr(tensors.npy, "read_array", count)
    average_files([tmp_path / "a.npz"], tmp_path / "mean.npz")
    assert len(reads) == 2


@pytest.mark.parametrize("save_npz", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("by_columns", [False, True])
def test_the_checksum_of_an_array_is_compared(tmp_path, save_npz, by_columns):
    x = np.random.default_rng(0).standard_normal((40, 50))
    save_npz(tmp_path / "a.npz", w=np.asfortranarray(x) if by_columns else x)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    wrong = zlib.crc32(b"something else").to_bytes(4, "little")
    at = content.rindex(b"PK\1\2") + 16
    content[at : at + 4] = wrong
    (tmp_path / "a.npz").write_bytes(content)
    refused(tmp_path / "a.npz", "CRC-32")

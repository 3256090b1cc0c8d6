"""Data files that are damaged, or something else: one sentence with the file's name."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.fedjax_files import femnist_folder, writer
from wima.core.errors import UsageError
from wima.data.cache import prepare, ready
from wima.data.federated import FederatedData
from wima.data.files import load_files
from wima.data.load import load
from wima.data.manage import show_data
from wima.data.sets.cifar import CIFAR10
from wima.data.sets.femnist import FEMNIST
from wima.data.split import read_assignment

LABELS = np.zeros(4, np.int64)


def arrays(**changes):
    own = {"x": np.ones((4, 2)), "y": np.arange(4), "client": np.arange(4)}
    return {**own, "x_test": np.ones((1, 2)), "y_test": np.zeros(1, np.int64), **changes}


def declaring(array: np.ndarray, shape: str) -> bytes:
    """An .npy file whose header declares another shape."""
    file = io.BytesIO()
    np.save(file, array)
    old, new = f"{array.shape}, }}", f"{shape}, }}"
    return file.getvalue().replace(old.encode().ljust(len(new)), new.encode().ljust(len(old)))


CUT = declaring(np.arange(4), "(4000,)")


@pytest.mark.parametrize("content", [CUT, b"", b"\x93NUMPY", CUT[:70]])
def test_an_array_larger_than_its_file_is_refused(tmp_path, content):
    folder, split = tmp_path / "folder", tmp_path / "split.npy"
    FederatedData(np.ones((4, 2)), np.arange(4), [0, 2, 4]).save(folder)
    for name in ("x", "y", "offsets"):
        (folder / f"{name}.npy").write_bytes(content)
        with pytest.raises(UsageError, match=rf"{name}\.npy must be an array"):
            FederatedData.open(folder)
        np.save(folder / f"{name}.npy", np.arange(4))
    split.write_bytes(content)
    with pytest.raises(UsageError, match="not a split file"):
        read_assignment(str(split), LABELS)
    for name, array in arrays().items():
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "y.npy").write_bytes(content)
    with pytest.raises(UsageError, match=r"y\.npy must be an array"):
        load_files(tmp_path)
    np.savez(tmp_path / "own.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        for name in arrays():
            archive.writestr(f"{name}.npy", content)
    with pytest.raises(UsageError, match=r"x (cannot be read|must hold numbers)"):
        load_files(tmp_path / "own.npz")
    with pytest.raises(UsageError, match="not a split file"):
        read_assignment(f"{tmp_path}/own.npz:y", LABELS)


@pytest.mark.parametrize("label", [2**30, 2**62])
@pytest.mark.parametrize("name", ["y", "y_test"])
def test_a_billion_classes_are_refused(tmp_path, label, name):
    np.savez(tmp_path / "own.npz", **arrays(**{name: np.full(len(arrays()[name]), label)}))
    with pytest.raises(UsageError, match=r"labels in 0\.\.1048575, got"):
        load_files(tmp_path / "own.npz")


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": np.array(10**9)},
        {"y": np.full((4, 3), 2**40), "y_test": np.zeros((1, 3), np.int64)},
    ],
)
def test_more_classes_than_a_model_can_have_are_refused(tmp_path, changes):
    np.savez(tmp_path / "own.npz", **arrays(**changes))
    with pytest.raises(UsageError, match="at most 1,048,576 classes"):
        load_files(tmp_path / "own.npz")


def test_examples_without_numbers_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", **arrays(x=np.ones((4, 0)), x_test=np.ones((1, 0))))
    with pytest.raises(UsageError, match="x must hold numbers"):
        load_files(tmp_path / "own.npz")


def test_arrays_beyond_the_memory_are_refused(tmp_path, monkeypatch):
    np.savez(tmp_path / "own.npz", **arrays())
    monkeypatch.setattr("wima.data.files.memory_available", lambda: 100.0)
    with pytest.raises(UsageError, match="in a folder"):
        load_files(tmp_path / "own.npz")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("target", ["data_batch_1.bin", "/etc/passwd", "../../x"])
def test_links_in_an_archive_are_not_followed(tmp_path, kind, target):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("data_batch_1.bin")
        link.type, link.linkname = kind, target
        archive.addfile(link)
    with pytest.raises(UsageError, match=r"no file data_batch_1\.bin in this archive"):
        CIFAR10.read(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"pixels": [b"text"]},
        {"label": np.array(3, np.int32)},
        {"label": [b"one"]},
        {"label": np.full(1, 2**40)},
        {"label": np.full(1, np.nan, np.float32)},
    ],
)
def test_clients_of_any_content_are_refused(tmp_path, monkeypatch, changes):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    femnist_folder(tmp_path, {"w": writer(1, **changes)})
    with pytest.raises(UsageError, match=str(tmp_path)):
        prepare(FEMNIST, tmp_path)


def test_whatever_a_reader_raises_names_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))

    def failing(error):
        def read(source):
            raise error

        return read

    for error in (AttributeError("x"), RecursionError(), MemoryError(), OverflowError("y")):
        broken = replace(CIFAR10, read=failing(error))
        with pytest.raises(UsageError, match=rf"{tmp_path}: damaged, or not"):
            prepare(broken, tmp_path)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"classes": 10, "names": None},
        {"classes": 10, "names": None, "sha256": {"x": "", "test": ""}},
    ],
)
def test_a_damaged_cache_is_refused(tmp_path, monkeypatch, meta):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path))
    folder = ready("cifar10")
    folder.mkdir(parents=True)
    for name in ("x", "y", "x_test", "y_test"):
        np.save(folder / f"{name}.npy", np.arange(3))
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UsageError, match="is damaged"):
        load("cifar10")


@pytest.mark.parametrize("text", ["[]", '{"users": [[]], "user_data": []}', "\ufeff{}"])
def test_a_split_of_any_content_is_refused(tmp_path, text):
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(UsageError, match="not a split file"):
        read_assignment(str(tmp_path / "split.json"), LABELS)


@pytest.mark.parametrize("name", ["~nobody-of-this-name/a.npz", "a" * 300 + ".npz", "a\0.npz"])
def test_names_that_no_file_can_have_are_refused(name):
    with pytest.raises(UsageError):
        load(name)
    with pytest.raises(UsageError):
        read_assignment(name, LABELS)


def test_a_table_that_fills_the_memory_is_not_shown(tmp_path):
    many = arrays(y=np.array([0, 1, 2, 2**20 - 1]))
    np.savez(tmp_path / "own.npz", **many)
    FederatedData.from_arrays(many["x"], many["y"], many["client"])
    big = {**many, "x": np.ones((400, 2)), "y": np.resize(many["y"], 400)}
    np.savez(tmp_path / "own.npz", **{**big, "client": np.arange(400)})
    with pytest.raises(UsageError, match="too many clients and classes"):
        list(show_data(str(tmp_path / "own.npz"), tmp_path / "sheet.png"))


def test_examples_of_any_shape_and_names_in_any_script_are_shown(tmp_path):
    own = arrays(x=np.ones((4, 2, 5, 5)), x_test=np.ones((1, 2, 5, 5)))
    own["client"] = np.array(["\u5317\u6771", "$x", "b" * 200, "\x1b[2J"])
    np.savez(tmp_path / "own.npz", **own)
    lines = list(show_data(str(tmp_path / "own.npz"), tmp_path / "labels.png"))
    assert "4 training" in lines[0] and (tmp_path / "labels.png").exists()

"""Data files that lie about their size, or are no files: one sentence, nothing is allocated."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import sqlite3
import tarfile
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.fedjax_files import femnist_folder, writer
from wima.core.errors import RunError, UsageError
from wima.data.cache import open_ready, prepare, ready
from wima.data.federated import FederatedData
from wima.data.files import load_folder, load_npz
from wima.data.load import load
from wima.data.manage import show_data
from wima.data.sets.cifar import CIFAR10, member, read_cifar10
from wima.data.sets.femnist import FEMNIST, read_femnist
from wima.data.sets.landmarks import ImageFiles, load_landmarks
from wima.data.sets.tff import parse_example, read_pam
from wima.data.splits.assignment import read_assignment

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


HUGE = [declaring(np.arange(4), f"({n},)") for n in (10**13, 2**70, -5)]


@pytest.mark.parametrize("content", [*HUGE, b"", b"\x93NUMPY", HUGE[0][:70]])
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
    with pytest.raises(UsageError, match=r"y\.npy cannot be read"):
        load_folder(tmp_path)
    np.savez(tmp_path / "own.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "own.npz", "w") as archive:
        for name in arrays():
            archive.writestr(f"{name}.npy", content)
    with pytest.raises(UsageError, match="x must be an array of plain numbers"):
        load_npz(tmp_path / "own.npz")
    with pytest.raises(UsageError, match="not a split file"):
        read_assignment(f"{tmp_path}/own.npz:y", LABELS)


@pytest.mark.parametrize("label", [2**30, 2**62])
@pytest.mark.parametrize("name", ["y", "y_test"])
def test_a_billion_classes_are_refused(tmp_path, label, name):
    np.savez(tmp_path / "own.npz", **arrays(**{name: np.full(len(arrays()[name]), label)}))
    with pytest.raises(UsageError, match=r"labels in 0\.\.1048575, got"):
        load_npz(tmp_path / "own.npz")


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
        load_npz(tmp_path / "own.npz")


def test_examples_without_numbers_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", **arrays(x=np.ones((4, 0)), x_test=np.ones((1, 0))))
    with pytest.raises(UsageError, match="x must hold numbers"):
        load_npz(tmp_path / "own.npz")


def test_a_small_file_does_not_unpack_to_gigabytes(tmp_path):
    with zipfile.ZipFile(tmp_path / "own.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in arrays():
            archive.writestr(f"{name}.npy", bytes(60 * 2**20))
    with pytest.raises(UsageError, match="would unpack to"):
        load_npz(tmp_path / "own.npz")
    with pytest.raises(UsageError, match="would unpack to"):
        read_assignment(f"{tmp_path}/own.npz:y", LABELS)


def test_arrays_beyond_the_memory_are_refused(tmp_path, monkeypatch):
    np.savez(tmp_path / "own.npz", **arrays())
    monkeypatch.setattr("wima.data.files.memory_available", lambda: 100.0)
    with pytest.raises(UsageError, match="in a folder"):
        load_npz(tmp_path / "own.npz")


def test_a_pipe_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    for name in ("own.npz", "split.npy", "data_batch_1.bin", "a.tar.gz", "a.sqlite", "x.npy"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "test").mkdir()
    (tmp_path / "train").mkdir()
    os.mkfifo(tmp_path / "train" / "all.json")
    ready("cifar10").mkdir(parents=True)
    os.mkfifo(ready("cifar10") / "meta.json")
    os.mkfifo(tmp_path / "test.csv")
    os.mkfifo(tmp_path / "federated_train.csv")
    readers = [
        lambda: load_npz(tmp_path / "own.npz"),
        lambda: load_folder(tmp_path),
        lambda: read_assignment(f"{tmp_path}/split.npy", LABELS),
        lambda: read_cifar10(tmp_path),
        lambda: read_cifar10(tmp_path / "a.tar.gz"),
        lambda: read_pam(tmp_path / "a.sqlite"),
        lambda: read_pam(tmp_path / "a.tar.gz"),
        lambda: read_femnist(tmp_path),
        lambda: open_ready("cifar10"),
        lambda: load_landmarks(tmp_path, tmp_path),
    ]
    for read in readers:
        with pytest.raises(UsageError):
            read()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
@pytest.mark.parametrize("target", ["data_batch_1.bin", "/etc/passwd", "../../x"])
def test_links_in_an_archive_are_not_followed(tmp_path, kind, target):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("data_batch_1.bin")
        link.type, link.linkname = kind, target
        archive.addfile(link)
    with pytest.raises(UsageError, match=r"no file data_batch_1\.bin in this archive"):
        read_cifar10(path)


def test_an_archive_that_unpacks_to_gigabytes_is_refused(tmp_path):
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        for name, kind in (("filler", tarfile.REGTYPE), ("x", tarfile.XHDTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, 2**40
            header = entry.tobuf(tarfile.GNU_FORMAT)
            (tmp_path / f"{name}.tar").write_bytes(header + bytes(1024))
            file.write(header if name == "filler" else b"")
    for name in ("a.tar.gz", "filler.tar", "x.tar"):
        with pytest.raises(UsageError, match="would unpack to 1,099,511"):
            read_cifar10(tmp_path / name)


def test_no_more_than_expected_is_read_of_a_file(tmp_path):
    with (tmp_path / "data_batch_1.bin").open("wb") as file:
        file.truncate(2**40)  # takes no space
    assert len(member(tmp_path, "data_batch_1.bin", 10)) == 11
    with pytest.raises(UsageError, match=r"data_batch_1\.bin must have 30,730,000 bytes"):
        read_cifar10(tmp_path)


def test_an_lzma_file_that_unpacks_to_gigabytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("wima.storage.reading.UNPACKED", 2**20)
    (tmp_path / "a.lzma").write_bytes(lzma.compress(bytes(2**24), lzma.FORMAT_ALONE, preset=0))
    with pytest.raises(UsageError, match="would unpack to"):
        read_pam(tmp_path / "a.lzma")


def test_a_clients_data_do_not_unpack_to_gigabytes(tmp_path, monkeypatch):
    monkeypatch.setattr("wima.data.sets.fedjax.UNPACKED", 2**20)
    femnist_folder(tmp_path, {"w": writer(1)}, w=zlib.compress(bytes(2**24)))
    with pytest.raises(UsageError, match="client w are damaged: incomplete, or more than"):
        read_femnist(tmp_path)


VIEW = (
    "CREATE VIEW federated_data AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) "
    "SELECT 'a' AS client_id, zeroblob(10) AS data, i AS num_examples FROM n"
)
BLOB = (
    "CREATE TABLE federated_data (client_id BLOB, num_examples INTEGER, "
    "data BLOB AS (zeroblob(999999999)))"
)


@pytest.mark.parametrize("schema", [VIEW, BLOB])
def test_an_sqlite_file_computes_nothing(tmp_path, schema):
    femnist_folder(tmp_path, {"w": writer(1)})
    train = tmp_path / FEMNIST.files[0].name
    train.unlink()
    with sqlite3.connect(train) as db:
        db.execute(schema)
        if schema is BLOB:
            db.execute("INSERT INTO federated_data VALUES ('a', 1)")
    db.close()
    with pytest.raises(UsageError, match="not FedJAX's SQLite file, or damaged"):
        read_femnist(tmp_path)


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


def test_long_names_are_refused_before_they_fill_an_array(tmp_path):
    femnist_folder(tmp_path, {"w" * 10**6: writer(1)})
    with pytest.raises(UsageError, match="at most 256 characters, got one of 1,000,000"):
        read_femnist(tmp_path)
    with pytest.raises(UsageError, match="at most 256 characters"):
        FederatedData([1, 2], [1, 2], [0, 1, 2], ["a", "b" * 10**6])


def test_a_number_without_an_end_is_refused():
    with pytest.raises(ValueError, match="ends inside a number"):
        parse_example(b"\x80" * 10**6 + b"\x00")


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
        {"classes": 10, "names": None, "sha256": {}},
        {"classes": 10, "names": None, "sha256": {"../../x": ""}},
        {"classes": 10**9, "names": None, "sha256": dict.fromkeys(("x", "y", "x_test", "y_test"))},
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


@pytest.mark.parametrize("text", ["[" * 10**5, '{"users": [[]], "user_data": []}', "\ufeff{}"])
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


def test_an_image_of_too_many_pixels_is_refused(tmp_path):
    from PIL import Image

    ids = np.array(["abc"])
    path = ImageFiles(tmp_path, ids).path(0)
    path.parent.mkdir(parents=True)
    Image.new("1", (9000, 9000)).save(path, "PNG")
    with pytest.raises(RunError, match="cannot be read as an image"):
        ImageFiles(tmp_path, ids)._open(0)


def test_a_table_with_a_field_that_is_too_long_is_refused(tmp_path):
    (tmp_path / "federated_train.csv").write_text(f"user_id,image_id,class\n{'u' * 200_000},abc,1")
    with pytest.raises(UsageError, match=r"federated_train\.csv, line"):
        load_landmarks(tmp_path, tmp_path)

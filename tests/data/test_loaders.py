"""Readers of publishers' files: what they take, and what they refuse, with the file's name."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import zlib

import msgpack
import numpy as np
import pytest

from tests.helpers.fedjax_files import FEMNIST_FILES, femnist_folder, write_fedjax, writer
from wima.core.errors import UsageError
from wima.data.cache import check_raw_data, prepare
from wima.data.load import load
from wima.data.sets.cifar import CIFAR10, CIFAR100
from wima.data.sets.femnist import FEMNIST, read_femnist
from wima.data.sets.shakespeare import read_shakespeare, rows
from wima.data.split import read_assignment

PIXELS = 3 * 32 * 32


@pytest.fixture(scope="module")
def black_cifar(tmp_path_factory):
    """Files of the right names and sizes, all zeros, that take no room on disk."""
    folder = tmp_path_factory.mktemp("black")
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        with (folder / name).open("wb") as file:
            file.truncate(10_000 * (1 + PIXELS))
    for name, count in (("train.bin", 50_000), ("test.bin", 10_000)):
        with (folder / name).open("wb") as file:
            file.truncate(count * (2 + PIXELS))
    return folder


@pytest.fixture
def cifar_copy(black_cifar, tmp_path):
    """A folder in which a file may be changed: all others are links."""

    def changed(name, at=None, byte=None, size=None):
        for path in black_cifar.iterdir():
            (tmp_path / path.name).symlink_to(path)
        (tmp_path / name).unlink()
        shutil.copy(black_cifar / name, tmp_path / name)
        with (tmp_path / name).open("r+b") as file:
            if size is not None:
                file.truncate(size)
            if at is not None:
                file.seek(at)
                file.write(bytes([byte]))
        return tmp_path

    return changed


@pytest.mark.parametrize("size", [0, 10_000 * (1 + PIXELS) - 1, 10_000 * (1 + PIXELS) + 1])
def test_a_cifar_file_of_another_size_is_refused_by_name(cifar_copy, size):
    message = rf"data_batch_3.bin must have 30,730,000 bytes, got {size:,}"
    with pytest.raises(UsageError, match=message):
        CIFAR10.read(cifar_copy("data_batch_3.bin", size=size))


def test_a_missing_cifar_file_is_named(cifar_copy):
    folder = cifar_copy("data_batch_4.bin")
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(UsageError, match=rf"{folder}: no file data_batch_4.bin in this folder"):
        CIFAR10.read(folder)


@pytest.mark.parametrize(
    ("dataset", "file", "at", "label", "message"),
    [
        (CIFAR10, "data_batch_2.bin", 0, 10, r"labels in 0..9, got 10 at index 10000"),
        (CIFAR10, "test_batch.bin", 1 + PIXELS, 255, r"test.* 0..9, got 255 at index 1"),
        (CIFAR100, "train.bin", 1, 100, r"labels in 0..99, got 100 at index 0"),
        (CIFAR100, "train.bin", 0, 20, r"0..19, got 20"),  # the coarse label
    ],
)
def test_a_label_that_cannot_be_is_refused(cifar_copy, dataset, file, at, label, message):
    folder = cifar_copy(file, at=at, byte=label)
    with pytest.raises(UsageError, match=rf"{folder}.*{message}"):
        check_raw_data(dataset.read(folder), folder)


def archive(path, names):
    with tarfile.open(path, "w:gz", compresslevel=1) as file:
        for name in names:
            content = bytes([3]) + bytes(PIXELS)
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = 10_000 * len(content)
            file.addfile(member, io.BytesIO(10_000 * content))
    return path


def test_cifar10_is_read_from_the_publishers_archive(tmp_path):
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    path = archive(tmp_path / "my-copy.tar.gz", names)
    pool = CIFAR10.read(tmp_path)  # the folder that holds the archive
    assert (pool.y == 3).all() and len(pool.x) == 50_000 and len(pool.x_test) == 10_000
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UsageError, match=rf"{path}: damaged, or not cifar-10-binary.tar.gz"):
        prepare(CIFAR10, path)


def test_an_archive_without_the_files_is_refused(tmp_path):
    path = archive(tmp_path / "a.tar.gz", ["readme.html"])
    with pytest.raises(UsageError, match=rf"{path}: no file data_batch_1.bin in this archive"):
        CIFAR10.read(path)
    path.write_text("<html>Not found</html>")
    with pytest.raises(UsageError, match=rf"{path}: damaged, or not cifar-10-binary.tar.gz"):
        prepare(CIFAR10, path)


def test_fedjaxs_writers_come_back_as_they_were_written(tmp_path):
    clients = {"b:f01": writer(3), "a:f02": writer(5, seed=1)}
    pool = read_femnist(femnist_folder(tmp_path / "50% #1?", clients))  # no URL to be misread
    assert pool.clients.tolist() == ["a:f02"] * 5 + ["b:f01"] * 3
    assert pool.x.dtype == np.uint8
    expected = np.concatenate([clients["a:f02"]["pixels"], clients["b:f01"]["pixels"]])[:, None]
    assert np.abs(pool.x / 255 - expected).max() < 1e-6
    assert pool.y.tolist() == [*clients["a:f02"]["label"], *clients["b:f01"]["label"]]


def test_test_images_keep_their_writers(tmp_path, monkeypatch):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    sizes = {"b": 2, "a": 3, "c": 1}
    for name, writers in zip(FEMNIST_FILES, ("bac", "bax"), strict=True):
        clients = {key: writer(sizes.get(key, 4), seed=ord(key)) for key in writers}
        write_fedjax(tmp_path / name, clients)
    prepare(FEMNIST, tmp_path)
    bundle = load("femnist")
    names = [*bundle.train.names, "nobody"]  # -1: x does not train
    owners = [names[i] for i in bundle.test_clients]
    assert sorted(owners) == ["a"] * 3 + ["b"] * 2 + ["nobody"] * 4
    for key in "ab":
        own = [i for i, name in enumerate(owners) if name == key]
        expected = writer(sizes[key], seed=ord(key))["label"]
        assert bundle.y_test[own].tolist() == expected.tolist()


@pytest.mark.parametrize("pixel", [0.1234567, -1 / 255, 256 / 255, np.nan])
def test_pixels_that_are_no_255ths_are_refused(tmp_path, pixel):
    odd = np.full((2, 28, 28), pixel, np.float32)
    clients = {"plain": writer(2), "odd": writer(2, pixels=odd)}
    with pytest.raises(UsageError, match="writer odd has pixels that are not 0/255"):
        read_femnist(femnist_folder(tmp_path, clients))


@pytest.mark.parametrize(
    ("client", "blob", "message"),
    [
        (writer(3), b"garbage", "the data of client w are damaged"),
        (writer(3), zlib.compress(b"\xc1"), "the data of client w are damaged"),
        (writer(3), zlib.compress(msgpack.packb([1, 2])), "the data of client w are damaged"),
        (writer(3), zlib.compress(bytes(99))[:-4], "the data of client w are damaged"),
        (writer(0), None, r"writer w has images of shape \(0, 28, 28\) and 0 lab"),
        ({"label": np.zeros(3, np.int32)}, None, "client w are damaged: KeyError: 'pixels'"),
        ({"pixels": np.zeros((3, 28, 28))}, None, "client w are damaged: KeyError: 'label'"),
        (writer(3, label=np.zeros(2, np.int32)), None, r"shape \(3, 28, 28\) and 2 labels"),
        (writer(3, pixels=np.zeros((3, 27, 28), np.float32)), None, r"shape \(3, 27, 28\)"),
    ],
)
def test_a_damaged_client_is_refused_by_file_and_name(tmp_path, client, blob, message):
    blobs = {} if blob is None else {"w": blob}
    femnist_folder(tmp_path, {"good": writer(2), "w": client}, **blobs)
    with pytest.raises(UsageError, match=rf"federated_emnist_train.sqlite: .*{message}"):
        read_femnist(tmp_path)


def test_what_is_no_sqlite_file_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"neither federated_emnist_train.sqlite nor LEAF's"):
        read_femnist(tmp_path)
    (tmp_path / FEMNIST_FILES[0]).write_bytes(b"<html>" * 1000)
    with pytest.raises(UsageError, match=r"federated_emnist_test.sqlite is missing"):
        read_femnist(tmp_path)
    (tmp_path / FEMNIST_FILES[1]).write_bytes(b"")
    with pytest.raises(UsageError, match=r"train.sqlite: not FedJAX's SQLite file, or damaged"):
        read_femnist(tmp_path)
    for name in ("shakespeare_train.sqlite", "shakespeare_test.sqlite"):
        write_fedjax(tmp_path / name, {})
    with pytest.raises(UsageError, match=r"shakespeare_train.sqlite: no roles"):
        read_shakespeare(tmp_path)


def test_unknown_characters_are_one_id_and_an_empty_speech_is_only_its_marks():
    x, y = rows([b"d~\xff"])
    assert x[0, :5].tolist() == [1, 3, 89, 89, 0] and y[0, :5].tolist() == [3, 89, 89, 2, 0]
    x, y = rows([b""])
    assert (x.shape, x[0, :2].tolist(), y[0, :2].tolist()) == ((1, 80), [1, 0], [2, 0])
    assert len(rows([b"d" * 79])[0]) == 1  # BOS, 79 characters, EOS: 80 steps
    assert len(rows([b"d" * 80])[0]) == 2


LABELS = np.array([3, 1, 4, 1, 5, 9])


def json_split(path, **changes):
    """The published splits' format; users are text, images know their labels."""
    users = {"0": ["img_4_label_5.png", "img_0_label_3.png"], "1": ["img_1_label_1.png"]} | changes
    data = {user: {"x": names, "y": []} for user, names in users.items()}
    sizes = [len(names) for names in users.values()]
    path.write_text(json.dumps({"users": list(users), "num_samples": sizes, "user_data": data}))
    return str(path)


def test_a_published_json_split_says_who_holds_which_image(tmp_path):
    path = json_split(tmp_path / "federated_train_alpha_0.05.json")
    assert read_assignment(path, LABELS).tolist() == [0, 1, -1, -1, 0, -1]
    path = json_split(tmp_path / "numbers.json", **{"1": [2, 3]})
    assert read_assignment(path, LABELS).tolist() == [0, -1, 1, 1, 0, -1]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("img_2_label_5.png", "'img_2_label_5.png' of user '1' does not match"),  # its label is 4
        ("img_6_label_5.png", "'img_6_label_5.png' of user '1' does not match"),
        (6, "6 of user '1' does not match"),
        (-1, "-1 of user '1' does not match"),
        ("2.png", "expected names like img_7_label_3.png, got '2.png'"),
        ("img_-1_label_9.png", "expected names like"),
        (None, "expected names like"),
        ("img_4_label_5.png", "img_4_label_5.png"),  # user 0 has it already
    ],
)
def test_a_json_split_that_does_not_fit_is_refused(tmp_path, entry, message):
    path = json_split(tmp_path / "split.json", **{"1": ["img_3_label_1.png", entry]})
    with pytest.raises(UsageError, match=rf"split.json: .*{message}"):
        read_assignment(path, LABELS)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(7, int), r"6 clients, one per example, got shape \(7,\)"),
        (np.zeros((6, 1), int), r"got shape \(6, 1\)"),
        (np.zeros(6), "must be integers, got float64"),
        (np.full(6, -1), "no example belongs to a client"),
    ],
)
def test_a_split_array_that_does_not_fit_is_refused(tmp_path, array, message):
    np.savez(tmp_path / "split.npz", mine=array)
    np.save(tmp_path / "split.npy", array)
    for source in ("split.npy", "split.npz:mine"):
        with pytest.raises(UsageError, match=rf"split.np.: .*{message}"):
            read_assignment(str(tmp_path / source), LABELS)

"""Facts about data split among clients: in memory, on disk, by name and from a user's file."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from wima.core.errors import RunError, UsageError
from wima.data.federated import FederatedData, as_tensor, read_rows
from wima.data.files import load_files
from wima.data.load import load
from wima.data.sets.digits import digits
from wima.simulation.engines.processes import Shared
from wima.simulation.local import batches, tensors
from wima.simulation.options import LocalSGD

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def three_clients(**changes):
    """Six examples, clients of 1, 2 and 3."""
    fields = {"x": X, "y": Y, "offsets": [0, 1, 3, 6], "names": ["a", "b", "c"], "classes": 3}
    return FederatedData(**(fields | changes))


def test_a_client_holds_the_rows_between_its_offsets():
    train = three_clients()
    assert (train.num_clients, train.num_examples) == (3, 6)
    assert train.sizes.tolist() == [train.size(i) for i in range(3)] == [1, 2, 3]
    x, y = train.client(1)
    assert x.tolist() == X[1:3].tolist()
    assert y.tolist() == [1, 2]
    assert np.shares_memory(x, X)  # a view, no copy


def test_a_million_clients_cost_two_arrays_and_their_borders():
    clients, each = 1_000_000, 10
    x, y = np.zeros((clients * each, 1), np.uint8), np.zeros(clients * each, np.uint8)
    train = FederatedData(x, y, np.arange(0, clients * each + 1, each), classes=1)
    assert train.num_clients == clients
    assert (train.sizes == each).all()
    assert train.x is x
    assert train.offsets.nbytes == 8 * (clients + 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": Y[:5]}, r"each have one row per example, got shapes \(6, 2\) and \(5,\)"),
        ({"x": np.array([{}] * 6)}, "x must be an array of numbers, got Python objects"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x must be a plain array"),
        ({"offsets": [1, 3, 4, 6]}, "offsets must start at 0, got 1"),
        ({"offsets": [0, 1, 3, 7]}, "offsets must end at the number of examples, 6, got 7"),
        ({"offsets": [0, 4, 3, 6]}, "must be increasing, got 4 before 3 at index 1"),
        ({"offsets": [0.0, 6.0]}, "offsets must be a list of integers, got float64"),
        ({"x": X[:0], "y": Y[:0], "offsets": [0]}, "The data has no clients"),
        ({"offsets": [0, 3, 3, 6]}, r"client 1 \('b'\) has no examples: every client needs"),
        ({"offsets": [0, 3, 3, 6], "names": None}, "client 1 has no examples"),
        ({"names": ["a", "b"]}, "one entry per client, 3, got 2"),
        ({"y": np.array([0, 1, 2, 0, 3, 0])}, r"labels in 0..2, got 3 at index 4"),
        ({"y": np.array([0, -1, 2, 0, 1, 0])}, r"labels in 0..2, got -1 at index 1"),
        ({"y": Y.astype(float)}, "integer labels, got float64"),
        ({"classes": 0}, "classes must be a positive integer, got 0"),
    ],
)
def test_data_that_does_not_fit_together_is_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        three_clients(**changes)


def test_targets_that_are_no_class_labels_are_not_judged():
    assert three_clients(y=np.linspace(0, 9, 6), classes=None).num_clients == 3
    sequences = np.full((6, 4), -100)
    assert three_clients(y=sequences).client(0)[1].shape == (1, 4)


@pytest.mark.parametrize("i", [-1, 3])
def test_only_clients_that_exist_can_be_asked_for(i):
    with pytest.raises(UsageError, match=rf"client must be a number in 0..2, got {i}"):
        three_clients().client(i)


def test_examples_are_sorted_by_client_and_keep_their_order_within():
    train = FederatedData.from_arrays(X, Y, [1, 0, 1, 0, 1, 1], classes=3, num_clients=2)
    assert train.client(0)[0].tolist() == X[[1, 3]].tolist()
    assert train.client(1)[0].tolist() == X[[0, 2, 4, 5]].tolist()
    assert train.y.tolist() == Y[[1, 3, 0, 2, 4, 5]].tolist()
    assert train.names is None


def test_named_clients_keep_their_names():
    train = FederatedData.from_arrays(X, Y, ["mia", "ann", "mia", "ann", "mia", "zoe"])
    assert list(train.names) == ["ann", "mia", "zoe"]
    assert train.sizes.tolist() == [2, 3, 1]
    train = FederatedData.from_arrays(X, Y, [70, 5, 70, 5, 5, 5])
    assert list(train.names) == ["5", "70"]


def test_examples_of_client_minus_one_are_left_out_with_their_labels():
    y = [0, 99, 1, 1, -7, 0]
    train = FederatedData.from_arrays(X, y, [1, -1, 0, 0, -1, 1], classes=2, num_clients=2)
    assert train.x.tolist() == X[[2, 3, 0, 5]].tolist()
    assert train.sizes.tolist() == [2, 2]


def test_sorted_examples_are_not_copied():
    train = FederatedData.from_arrays(X, Y, [0, 0, 1, 1, 1, 2])
    assert np.shares_memory(train.x, X)


def test_tensors_and_lists_are_welcome():
    tensors = FederatedData.from_arrays(
        torch.tensor(X, requires_grad=True), torch.tensor(Y), torch.tensor([1, 0, 1, 0, 1, 1])
    )
    lists = FederatedData.from_arrays(X.tolist(), Y.tolist(), [1, 0, 1, 0, 1, 1])
    assert tensors.x.tolist() == lists.x.tolist()
    assert tensors.y.tolist() == lists.y.tolist()


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([0, 1, 0], {}, r"got shapes \(6, 2\), \(6,\) and \(3,\)"),
        ([], {}, r"one per example, got shape \(0,\)"),
        ([-1] * 6, {}, "no clients: the client of every example is -1"),
        ([0, 1, -2, 0, 0, 0], {}, "0 or more, or -1 for .* got -2 at index 2"),
        ([0, 1, 2, 0, 0, 0], {"num_clients": 2}, r"in 0..1, or -1 for .* got 2 at index 2"),
        ([0, 1, 3, 0, 0, 0], {"num_clients": 4}, "client 2 has no examples"),
        ([0, 1, 1, 0, 0, 0], {"num_clients": 3}, "client 2 has no examples"),
        ([0] * 6, {"num_clients": 10**15}, "at most the number of examples, 6, got 10"),
        ([0] * 6, {"num_clients": 0}, "num_clients must be a positive integer"),
        (["a"] * 6, {"num_clients": 1}, "clients must be integers, got text"),
        ([0.0] * 6, {}, "text or integers, got float64"),
        # The index is the caller's, not that after sorting.
        ([1, 0, 0, 0, 0, 0], {"classes": 2}, r"labels in 0..1, got 2 at index 2"),
    ],
)
def test_clients_that_do_not_fit_the_examples_are_refused(clients, options, message):
    with pytest.raises(UsageError, match=message):
        FederatedData.from_arrays(X, Y, clients, **options)


@pytest.mark.parametrize("names", [None, ["a", "b", "Zoë"]])
def test_saved_data_comes_back_mapped_from_disk(tmp_path, names):
    saved = three_clients(names=names)
    saved.save(tmp_path / "new" / "set")
    opened = FederatedData.open(tmp_path / "new" / "set")
    assert isinstance(opened.x, np.memmap)
    assert isinstance(opened.y, np.memmap)
    for field in ("x", "y", "offsets"):
        assert np.array_equal(getattr(opened, field), getattr(saved, field))
        assert getattr(opened, field).dtype == getattr(saved, field).dtype
    assert opened.classes == 3
    assert (opened.names is None) if names is None else (list(opened.names) == names)


def test_torch_takes_mapped_data_without_a_warning_and_cannot_change_the_files(tmp_path):
    three_clients().save(tmp_path / "set")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensors(FederatedData.open(tmp_path / "set"), 0)[0].zero_().add_(7)
    assert np.array_equal(FederatedData.open(tmp_path / "set").x, X)


def test_torch_takes_arrays_that_are_not_writable_without_a_warning():
    x = X.copy()
    x.flags.writeable = False  # as pandas returns them
    torch.set_warn_always(True)  # else torch warns once per process
    try:
        with pytest.warns(UserWarning, match="not writable"):
            torch.from_numpy(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            taken = as_tensor(x)
    finally:
        torch.set_warn_always(False)
    assert taken.data_ptr() == x.ctypes.data  # not a copy


def test_saving_never_overwrites(tmp_path):
    with pytest.raises(UsageError, match="already exists"):
        three_clients().save(tmp_path)


def test_a_save_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full_disk(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(json, "dumps", full_disk)
    with pytest.raises(RunError, match="No space left"):
        three_clients().save(tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", ["x.npy", "y.npy", "offsets.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["remove", "empty", "garble", "truncate"])
def test_a_damaged_folder_names_the_file(tmp_path, file, damage):
    three_clients().save(tmp_path / "set")
    path = tmp_path / "set" / file
    content = path.read_bytes()
    path.unlink()
    if damage != "remove":
        path.write_bytes({"empty": b"", "garble": b"\x80abc", "truncate": content[:-4]}[damage])
    with pytest.raises(UsageError, match=file):
        FederatedData.open(tmp_path / "set")


def test_files_that_do_not_fit_together_name_the_folder(tmp_path):
    three_clients().save(tmp_path / "set")
    np.save(tmp_path / "set" / "y.npy", Y[:4])
    with pytest.raises(UsageError, match=r"set is damaged: x and y must each have one row"):
        FederatedData.open(tmp_path / "set")
    (tmp_path / "set" / "meta.json").write_text("[]")
    with pytest.raises(UsageError, match=r"meta.json must be JSON with names and classes: "):
        FederatedData.open(tmp_path / "set")


def test_objects_are_never_unpickled(tmp_path):
    three_clients().save(tmp_path / "set")
    np.save(tmp_path / "set" / "offsets.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UsageError, match=r"offsets.npy must be an array"):
        FederatedData.open(tmp_path / "set")


def write(path, **changes):
    """A good file, with some arrays changed, or removed with None."""
    arrays = {
        "x": X,
        "y": Y,
        "client": [1, 0, 1, 0, 1, 1],
        "x_test": X[:2],
        "y_test": Y[:2],
    } | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_a_file_of_arrays_is_a_data_set(tmp_path):
    path = write(tmp_path / "mine.npz", x=X.astype(float), y=Y.astype(np.uint8), note=np.ones(3))
    bundle = load_files(path)
    assert bundle.train.sizes.tolist() == [2, 4]
    assert bundle.train.x.dtype == np.float32
    assert bundle.train.y.dtype == bundle.y_test.dtype == np.int64
    assert bundle.classes == bundle.train.classes == Y.max() + 1
    assert bundle.x_test.tolist() == X[:2].tolist()


def test_a_file_may_say_its_classes_and_name_its_clients(tmp_path):
    bundle = load_files(write(tmp_path / "a.npz", classes=7, client=list("babaab")))
    assert bundle.classes == bundle.train.classes == 7
    assert list(bundle.train.names) == ["a", "b"]


def test_a_file_may_name_the_client_of_each_test_example(tmp_path):
    named = load_files(write(tmp_path / "a.npz", client=list("babaab"), test_client=["b", "x"]))
    assert named.test_clients.tolist() == [1, -1]
    numbered = load_files(write(tmp_path / "a.npz", test_client=[7, 1]))
    assert numbered.test_clients.tolist() == [-1, 1]


def test_classes_are_counted_over_training_and_test_without_left_out_examples(tmp_path):
    path = write(tmp_path / "a.npz", y=[0, 1, 1, 0, 1, 255], client=[0, 0, 1, 1, 1, -1])
    assert load_files(path).classes == 2
    assert load_files(write(tmp_path / "a.npz", y_test=[0, 8])).classes == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client": None}, "missing client, got x, y, x_test, y_test"),
        ({"x": None, "y": None}, "missing x, y, got client, x_test, y_test"),
        ({"x": np.array([{}] * 6)}, "expected an .npz file of plain arrays, but x cannot"),
        ({"x": np.array(["a"] * 6)}, "x must hold numbers"),
        ({"y": Y[:5]}, r"got shapes \(6, 2\), \(5,\) and \(6,\)"),
        ({"client": [0, 1]}, r"got shapes \(6, 2\), \(6,\) and \(2,\)"),
        ({"y_test": Y[:3]}, r"x_test and y_test .* got shapes \(2, 2\) and \(3,\)"),
        ({"x_test": X[:0], "y_test": Y[:0]}, r"y_test must hold integers, .* shape \(0,\)"),
        ({"x_test": X[:2, :1]}, r"same shape, got x \(2,\), x_test \(1,\)"),
        ({"y": Y.astype(float)}, "y must hold integers, .* got float64"),
        ({"y_test": [0.0, 1.0]}, "y_test must hold integers, .* got float64"),
        ({"classes": 2}, r"y must hold labels in 0..1, got 2 at index 2"),
        ({"y": -Y}, r"y must hold labels in .* got -1 at index 1"),
        ({"classes": 3, "y_test": [0, 3]}, r"y_test must hold labels in 0..2, got 3 at index 1"),
        ({"classes": [3, 3]}, r"classes must be a positive integer, got \[3, 3\]"),
        ({"num_clients": 3}, "client 2 has no examples"),
        ({"test_client": [0]}, "test_client must have one entry per test example, 2"),
        ({"num_clients": 0}, "num_clients must be a positive integer, got 0"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(UsageError, match=rf"mine\.npz: .*{message}"):
        load_files(write(tmp_path / "mine.npz", **changes))


def test_what_is_no_npz_file_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match=r"none\.npz: no such file"):
        load_files(tmp_path / "none.npz")
    path = tmp_path / "mine.npz"
    for content in (b"", b"hello", write(path).read_bytes()[:-40]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"mine\.npz: expected an \.npz file"):
            load_files(path)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(UsageError, match=r"mine\.npz: expected an \.npz file"):
        load_files(path)


def test_a_flipped_bit_in_a_file_is_noticed(tmp_path):
    path = write(tmp_path / "mine.npz")
    content = path.read_bytes()
    at = content.index(X.tobytes())
    path.write_bytes(content[:at] + b"\xff" + content[at + 1 :])
    with pytest.raises(UsageError, match=r"mine\.npz: .*CRC"):
        load_files(path)


def test_a_data_set_is_loaded_by_name_or_by_file(tmp_path):
    by_name = load("digits", clients=30, alpha=0.5, seed=2)
    assert np.array_equal(by_name.train.x, digits(30, 0.5, 2).train.x)
    path = write(tmp_path / "mine.npz")
    assert load(str(path), seed=2).train.num_clients == 2
    with pytest.raises(UsageError, match="defines its own clients"):
        load(str(path), alpha=0.5)


def mapped_data(tmp_path, clients=300):
    """A client per page and more, in a file that is large enough to be let go."""
    x = np.arange(clients * 20 * 3000, dtype=np.float32).reshape(clients * 20, 3000)
    FederatedData(x, np.zeros(len(x), np.int64), np.arange(0, len(x) + 1, 20)).save(
        tmp_path / "set"
    )
    return x, FederatedData.open(tmp_path / "set")


def resident(array):
    """Bytes of the mapping that are in this process."""
    address, found = array.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first:
            begin, end = (int(part, 16) for part in first.split("-"))
            found = begin <= address < end
        elif found and line.startswith("Rss:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("the array is in no mapping")


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_clients_that_were_read_leave_no_pages_behind(tmp_path):
    x, data = mapped_data(tmp_path)
    for client in range(data.num_clients):
        parts = [batch.x for batch in batches(data, client, LocalSGD(batch_size=20), 0, 0)]
        rows = data._rows(client)
        assert torch.equal(torch.cat(parts).sort(0).values, torch.from_numpy(x[rows]))
    assert resident(data.x) < 4 * 20 * 3000 * 4 < data.x.nbytes / 50


def test_rows_of_a_large_mapped_array_are_read_from_its_file(tmp_path):
    _, data = mapped_data(tmp_path)
    shared = Shared()
    elsewhere = shared.share(data.x).open()  # as a worker maps it
    for array in (data.x, elsewhere):
        for rows in (array[:1], array[41:97], array[-3:], array[5:5]):
            read = read_rows(rows)
            assert read.base is None or rows.size == 0
            assert np.array_equal(read, rows) and read.dtype == rows.dtype
        assert read_rows(array[::2]).base is not None  # not in one piece: as it is mapped
    shared.close()


def test_mapped_arrays_are_read_only(tmp_path):
    three_clients().save(tmp_path / "set")
    with pytest.raises(ValueError, match="read-only"):
        FederatedData.open(tmp_path / "set").x[0, 0] = 1

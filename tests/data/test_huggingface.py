"""Data from elsewhere: Hugging Face's data sets, and folders of any size that are mapped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import wima
from tests.helpers.commands import printed
from wima.core.errors import UsageError
from wima.data.federated import FederatedData
from wima.data.huggingface import from_hugging_face
from wima.data.load import load
from wima.data.manage import import_data
from wima.models import MLP
from wima.simulation.engines.processes import Shared

try:
    import datasets
except ImportError:
    datasets = None

needs_datasets = pytest.mark.skipif(datasets is None, reason="the package datasets is missing")
COLUMNS = {"client": "who", "x": "input", "y": "label"}


def dataset(features=None, **columns):
    """Four examples of two clients."""
    given = {"who": ["zoe", "ann", "zoe", "zoe"], "label": [2, 0, 1, 1], **columns}
    if features:
        features = {"who": datasets.Value("string"), "label": datasets.Value("int64"), **features}
        features = datasets.Features(features)
    return datasets.Dataset.from_dict(given, features=features)


def pictures(mode, sizes=((6, 5),) * 4):
    random = np.random.default_rng(0)
    shape = (3,) if mode == "RGB" else ()
    arrays = [random.integers(0, 256, (h, w, *shape), dtype=np.uint8) for w, h in sizes]
    return arrays, [Image.fromarray(array) for array in arrays]


@needs_datasets
def test_numbers_come_out_as_they_are_client_by_client():
    x = [[0.5, 1.0], [1.5, 2.0], [2.5, 3.0], [3.5, 4.0]]
    data = from_hugging_face(dataset(input=x), **COLUMNS, classes=3)
    assert list(data.names) == ["ann", "zoe"] and data.sizes.tolist() == [1, 3]
    assert data.x.tolist() == [x[1], x[0], x[2], x[3]] and data.x.dtype == np.float32
    assert data.y.tolist() == [0, 2, 1, 1] and data.y.dtype == np.int64


@needs_datasets
def test_clients_may_be_numbers():
    data = from_hugging_face(dataset(input=[[1], [2], [3], [4]], who=[1, 0, 1, 1]), **COLUMNS)
    assert data.names is None and data.x.tolist() == [[2], [1], [3], [4]]


@needs_datasets
def test_arrays_of_bytes_are_numbers_not_pictures():
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 7, 5), dtype=np.uint8)
    features = {"input": datasets.Array3D((3, 7, 5), "uint8")}
    data = from_hugging_face(dataset(features, input=list(x)), **COLUMNS)
    assert np.array_equal(data.x, x[[1, 0, 2, 3]])


@needs_datasets
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_come_out_as_bytes_with_the_channels_first(mode):
    arrays, images = pictures(mode)
    data = from_hugging_face(dataset({"input": datasets.Image()}, input=images), **COLUMNS)
    expected = np.stack([arrays[i] for i in (1, 0, 2, 3)])
    expected = expected[:, None] if mode == "L" else expected.transpose(0, 3, 1, 2)
    assert data.x.dtype == np.uint8 and np.array_equal(data.x, expected)


@needs_datasets
def test_class_labels_are_their_numbers_and_models_can_train_on_them():
    features = {
        "input": datasets.Sequence(datasets.Value("float32"), 2),
        "label": datasets.ClassLabel(names=["cat", "dog", "owl"]),
    }
    given = dataset(features, input=[[0, 1]] * 4, label=["owl", "cat", "dog", "dog"])
    data = from_hugging_face(given, **COLUMNS, classes=3)
    assert data.y.tolist() == [0, 2, 1, 1]
    task = wima.make_task(lambda: MLP(2, 4, 3), data, (data.x, data.y))
    assert wima.run(task, rounds=1, clients_per_round=1, lr=0.1).vectors["plain"].isfinite().all()


@needs_datasets
@pytest.mark.parametrize("column", ["client", "x", "y"])
def test_a_missing_column_is_named_beside_those_there_are(column):
    message = r"no column 'nothing'; it has who, label, input"
    with pytest.raises(UsageError, match=message):
        from_hugging_face(dataset(input=[0] * 4), **COLUMNS | {column: "nothing"})


@needs_datasets
def test_examples_of_unequal_shapes_are_refused():
    with pytest.raises(UsageError, match="column 'input' must have the same shape"):
        from_hugging_face(dataset(input=[[1], [2, 3], [4], [5]]), **COLUMNS)
    _, images = pictures("RGB", sizes=[(6, 5), (6, 5), (5, 6), (6, 5)])
    given = dataset({"input": datasets.Image()}, input=images)
    with pytest.raises(UsageError, match="column 'input' must have the same shape"):
        from_hugging_face(given, **COLUMNS)


@needs_datasets
def test_a_missing_client_and_a_label_out_of_range_are_refused():
    with pytest.raises(UsageError, match="client"):
        from_hugging_face(dataset(input=[0] * 4, who=["a", None, "b", "b"]), **COLUMNS)
    with pytest.raises(UsageError, match=r"labels in 0..1, got 2 at index 0"):
        from_hugging_face(dataset(input=[0] * 4), **COLUMNS, classes=2)


@needs_datasets
def test_all_parts_at_once_are_refused():
    parts = datasets.DatasetDict(train=dataset(input=[0] * 4), test=dataset(input=[0] * 4))
    with pytest.raises(UsageError, match="no column 'who'"):
        from_hugging_face(parts, **COLUMNS)


MILLION = """
import json, sys, time
import numpy as np
from wima.simulation.local import batches
from wima.simulation.options import LocalSGD
from wima.data.federated import FederatedData
from wima.simulation.options import uniform_cohorts

def peak():  # in bytes; getrusage would count the parent's memory before exec, too
    status = open("/proc/self/status").read()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

before, begin = peak(), time.perf_counter()
data = FederatedData.open(sys.argv[1])
opened = time.perf_counter() - begin
cohort = uniform_cohorts(data.num_clients, 100)(0, 0)
drawn = [b.x.shape for i in cohort for b in batches(data, i, LocalSGD(batch_size=5), 0, 0)]
total = time.perf_counter() - begin
mapped = isinstance(data.x, np.memmap)
print(json.dumps([data.num_clients, mapped, drawn, before, peak(), opened, total]))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read in /proc")
def test_a_million_clients_open_at_once_and_in_little_memory(tmp_path):
    clients, each, features = 1_000_000, 10, 30
    x = np.memmap(tmp_path / "x", np.int8, "w+", shape=(clients * each, features))  # 300 MB
    y, offsets = np.zeros(clients * each, np.int8), np.arange(clients + 1) * each
    FederatedData(x, y, offsets, classes=1).save(tmp_path / "million")
    told = printed(MILLION, str(tmp_path / "million"))
    shutil.rmtree(tmp_path)
    number, mapped, drawn, before, peak, opened, total = json.loads(told)
    assert (number, mapped, drawn) == (clients, True, [[5, features]] * 200)
    assert peak < 2**30 and peak - before < 150 * 2**20  # half of what is on disk
    assert total < 20
    print(f"{opened:.3f} s to open, {total:.3f} s with a cohort; {before >> 20} -> {peak >> 20} MB")


def test_prepared_cifar10_opens_without_its_publishers_files(cifar10_files, tmp_path, monkeypatch):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path))
    import_data("cifar10", cifar10_files)
    code = """
import json, sys, time, numpy as np
import wima.data.load
opened = []
sys.addaudithook(lambda event, a: opened.append(str(a[0])) if event == "open" else None)
begin = time.perf_counter()
bundle = wima.data.load.load("cifar10", alpha=0.05)
seconds = time.perf_counter() - begin
mapped = isinstance(bundle.x_test, np.memmap)
print(json.dumps([opened, mapped, bundle.train.num_clients, seconds]))
"""
    opened, mapped, clients, seconds = json.loads(printed(code))
    data = [path for path in opened if path.endswith((".npy", ".bin", ".gz", "meta.json"))]
    assert mapped and clients == 100
    assert {Path(path).parent for path in data} == {tmp_path / "ready" / "cifar10"}
    assert not any(str(cifar10_files) in path for path in opened)
    shutil.rmtree(tmp_path)
    print(f"CIFAR-10 from the prepared cache: {seconds:.2f} s")


def own_folder(folder, x):
    """A user's folder of two clients, whose x.npy is written as it lies in memory."""
    folder.mkdir()
    y = np.arange(len(x)) % 3
    arrays = {"x": x, "y": y, "client": np.sort(y) // 2, "x_test": x, "y_test": y}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return load(str(folder))


def test_workers_see_a_mapped_array_that_lies_column_by_column(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32, order="F")
    bundle = own_folder(tmp_path / "own", x)
    task = wima.make_task(lambda: MLP(5, 4, 3), bundle.train, (bundle.x_test, bundle.y_test))
    options = {"rounds": 1, "clients_per_round": 2, "lr": 0.1, "eval_every": 0, "workers": 2}
    ends = [wima.run(task, engine=e, **options).vectors["plain"] for e in ("serial", "processes")]
    assert torch.equal(*ends)


def test_a_mapped_array_or_a_part_of_it_is_shared_as_it_is(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(20.0).reshape(4, 5))
    np.save(tmp_path / "columns.npy", np.arange(20.0).reshape(4, 5).T)
    for name in ("x.npy", "columns.npy"):
        whole = np.load(tmp_path / name, mmap_mode="c")
        for part in (whole, whole[1:3], whole[::2], whole[:, ::-1], whole.T, whole.reshape(-1)[3:]):
            shared = Shared()
            assert np.array_equal(shared.share(part).open(), part)
            shared.close()

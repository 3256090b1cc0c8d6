"""The real data sets, in their publishers' formats: known facts, published splits, one real round.

Published numbers are those of Krizhevsky (2009) and of LEAF; the Dirichlet splits are Hsu et al.'s.
"""

from __future__ import annotations

import shutil
import sqlite3
import zlib

import msgpack
import numpy as np
import pytest
import torch

from wima.core.vector import one_thread
from wima.data.cache import open_ready
from wima.data.federated import as_tensor
from wima.data.load import load
from wima.data.manage import import_data, label_counts
from wima.data.sets.femnist import read_femnist
from wima.data.split import assign
from wima.runs.build import build
from wima.runs.settings import load_settings
from wima.simulation.engines.processes import Shared
from wima.simulation.measures.base import objective
from wima.simulation.workspace import Batch

pytestmark = pytest.mark.real

ONE_ROUND = ["rounds=1", "clients_per_round=1", "eval_every=0", "engine=serial"]
COARSE_OF_FINE = (  # CIFAR-100's fine label -> coarse label, as its publisher groups them
    "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 "
    "11 5 5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 9 19 2 10 0 1 "
    "16 12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"
)
ALPHABET = (  # of TFF's tutorial, in the order of ids, which start at 3 after PAD, BOS and EOS
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A data cache of this module's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WIMA_DATA", str(folder))
        yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cifar10(cache, cifar10_files):
    import_data("cifar10", cifar10_files)
    return open_ready("cifar10")[0]


@pytest.fixture(scope="module")
def cifar100(cache, cifar100_files):
    import_data("cifar100", cifar100_files)
    return open_ready("cifar100")[0]


@pytest.fixture(scope="module")
def femnist(cache, femnist_files):
    import_data("femnist", femnist_files)
    return load("femnist")


@pytest.fixture(scope="module")
def shakespeare(cache, shakespeare_files):
    import_data("shakespeare", shakespeare_files)
    return load("shakespeare")


def channel_statistics(x):
    """Mean and standard deviation of each channel on the scale 0 ... 1, from a histogram."""
    values = np.arange(256) / 255
    shares = [np.bincount(x[:, c].ravel(), minlength=256) / x[:, c].size for c in range(3)]
    means = [p @ values for p in shares]
    return means, [(p @ values**2 - m**2) ** 0.5 for p, m in zip(shares, means, strict=True)]


def counted(labels, clients, classes):
    """How many examples of each class each client has, one example after the other."""
    table = np.zeros((clients.max() + 1, classes), np.int64)
    np.add.at(table, (clients[clients >= 0], labels[clients >= 0]), 1)
    return table


def mean_entropy(table):
    p = table / table.sum(axis=1, keepdims=True)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1).mean()


def fedjax_client(path, client, column):
    """One client's column, straight from the file."""
    with sqlite3.connect(path) as db:
        query = "SELECT data FROM federated_data WHERE client_id = ?"
        ((blob,),) = db.execute(query, (client.encode(),))
    db.close()
    packed = msgpack.unpackb(zlib.decompress(blob), ext_hook=lambda _, data: msgpack.unpackb(data))
    return packed[column]


def test_cifar10_is_as_published(cifar10):
    assert cifar10["x"].shape == (50_000, 3, 32, 32) and cifar10["x"].dtype == np.uint8
    assert np.bincount(cifar10["y"]).tolist() == [5_000] * 10
    assert np.bincount(cifar10["y_test"]).tolist() == [1_000] * 10
    assert cifar10["y"][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    mean, std = channel_statistics(cifar10["x"])
    assert mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=6e-5)
    assert std == pytest.approx([0.2470, 0.2435, 0.2616], abs=6e-5)


def test_cifar100_is_as_published(cifar100):
    assert cifar100["x"].shape == (50_000, 3, 32, 32)
    assert np.bincount(cifar100["y"]).tolist() == [500] * 100
    assert np.bincount(cifar100["y_test"]).tolist() == [100] * 100
    assert np.bincount(cifar100["groups"]).tolist() == [2_500] * 20
    mean, std = channel_statistics(cifar100["x"])
    assert mean == pytest.approx([0.5071, 0.4865, 0.4409], abs=6e-5)
    assert std == pytest.approx([0.2673, 0.2564, 0.2762], abs=6e-5)


def test_cifar100_groups_its_classes_as_published(cifar100):
    coarse = np.array(COARSE_OF_FINE.split(), int)
    assert np.bincount(coarse).tolist() == [5] * 20
    assert np.array_equal(cifar100["groups"], coarse[cifar100["y"]])


def test_cifar10_pixels_are_the_publishers_planes(cifar10, cifar10_files):
    record = (cifar10_files / "data_batch_3.bin").read_bytes()[7 * 3073 : 8 * 3073]
    assert cifar10["y"][20_007] == record[0]
    assert cifar10["x"][20_007].tobytes() == record[1:]


def test_the_models_input_has_mean_zero_and_deviation_one(cifar10, cifar100):
    for name, arrays in (("cifar10", cifar10), ("cifar100", cifar100)):
        x = load(name).transform.evaluate(as_tensor(arrays["x"][:5_000]))
        assert x.mean((0, 2, 3)).abs().max() < 0.05  # a tenth of the set stands for the whole
        assert (x.std((0, 2, 3)) - 1).abs().max() < 0.05


@pytest.mark.parametrize(
    ("alpha", "least", "most"), [("0.00", 1, 1), ("0.05", 1, 3), ("1.00", 1, 10), ("10.00", 2, 10)]
)
def test_published_splits_of_cifar10_load_as_they_are(cifar10, published, alpha, least, most):
    file, key = published / "cifar10" / "splits_hsu_dirichlet.npz", f"client_alpha_{alpha}"
    bundle = load("cifar10", split=f"{file}:{key}")
    direct = counted(np.load(published / "cifar10/labels.npz")["y_train"], np.load(file)[key], 10)
    counts = label_counts(bundle.train, 10)
    assert counts.shape == (100, 10) and np.array_equal(counts, direct)
    classes = (counts > 0).sum(axis=1)
    assert least <= classes.min() and classes.max() <= most
    assert sorted(set(bundle.train.sizes)) in ([500], [499, 500])  # the files miss one image


@pytest.mark.parametrize(("alpha", "least", "most"), [("0.00", 1, 1), ("0.50", 2, 13)])
def test_published_splits_of_cifar100_load_as_they_are(
    cifar100, cifar100_files, published, tmp_path, alpha, least, most
):
    clients = np.load(published / "cifar100/splits_hsu_dirichlet.npz")[f"client_alpha_{alpha}"]
    order = np.load(cifar100_files / "train_order.npy")  # row i of the file is image order[i]
    np.save(tmp_path / "split.npy", clients[order])
    counts = label_counts(load("cifar100", split=str(tmp_path / "split.npy")).train, 100)
    direct = counted(np.load(published / "cifar100/labels.npz")["y_train"], clients, 100)
    assert np.array_equal(counts, direct)
    classes = (counts > 0).sum(axis=1)
    assert (classes.min(), classes.max()) == (least, most)


@pytest.mark.parametrize(
    ("name", "alpha", "entropy"),
    [
        ("cifar10", 0.05, 0.116),
        ("cifar10", 1, 0.794),
        ("cifar10", 10, 1.854),
        ("cifar100", 0.5, 0.729),
    ],
)
def test_our_dirichlet_splits_look_like_the_published_ones(published, name, alpha, entropy):
    file = np.load(published / name / "splits_hsu_dirichlet.npz")[f"client_alpha_{alpha:.2f}"]
    y = np.load(published / name / "labels.npz")["y_train"].astype(np.int64)
    classes = int(y.max()) + 1
    theirs = counted(y, file, classes)
    assert mean_entropy(theirs) == pytest.approx(entropy, abs=6e-4)
    ours = [counted(y, assign(y, 100, float(alpha), seed), classes) for seed in range(8)]
    entropies, kinds = zip(*((mean_entropy(t), (t > 0).sum(1).mean()) for t in ours), strict=True)
    # One published draw against the spread of ours.
    assert abs(mean_entropy(theirs) - np.mean(entropies)) < 4 * np.std(entropies, ddof=1)
    if name == "cifar10":  # CIFAR-100's file keeps more tiny shares than rounding does
        assert abs((theirs > 0).sum(1).mean() - np.mean(kinds)) < 4 * np.std(kinds, ddof=1)
    else:
        assert np.mean(kinds) == pytest.approx(3.97, abs=0.15)


def test_femnist_has_405_complete_writers(femnist):
    assert femnist.train.num_clients == 405
    assert femnist.train.num_examples + len(femnist.y_test) == 66_512
    assert femnist.classes == 62
    assert np.unique(femnist.train.y).tolist() == list(range(62))
    digits = (np.concatenate([femnist.train.y, femnist.y_test]) < 10).mean()
    assert digits == pytest.approx(0.71, abs=0.005)


def test_femnist_models_see_ink_on_nothing(femnist, femnist_files):
    client = 17
    name = str(femnist.train.names[client])
    path = femnist_files / "federated_emnist_train.sqlite"
    shape, dtype, content = fedjax_client(path, name, "pixels")
    x = femnist.transform.train(as_tensor(femnist.train.client(client)[0]), (0,))
    assert x.dtype == torch.float32 and x.shape == (shape[0], 1, 28, 28)
    expected = 1 - np.frombuffer(content, dtype).reshape(-1, 1, 28, 28)
    assert np.abs(x.numpy() - expected).max() < 1e-6
    assert x[..., 0, :].mean() < 0.01 < 0.9 < x.amax((1, 2, 3)).mean()


def test_leafs_json_and_fedjaxs_sqlite_hold_the_same_writers(leaf_files, femnist_files):
    leaf, fedjax = read_femnist(leaf_files), read_femnist(femnist_files)
    writers = np.array([name.rsplit(":")[-1] for name in fedjax.clients])
    assert len(np.unique(leaf.clients)) == 30
    for name in np.unique(leaf.clients):
        assert np.array_equal(leaf.x[leaf.clients == name], fedjax.x[writers == name])
        assert np.array_equal(leaf.y[leaf.clients == name], fedjax.y[writers == name])


def naive_rows(snippets):
    """Each snippet between BOS and EOS, all in a row, padded to a multiple of 80, cut."""
    ids = {character: 3 + i for i, character in enumerate(ALPHABET)}
    text = []
    for snippet in snippets:
        text += [1, *(ids.get(chr(byte), 89) for byte in snippet), 2]
    x, y = text[:-1], text[1:]
    while len(x) % 80:
        x.append(0)
        y.append(0)
    return np.reshape(x, (-1, 80)), np.reshape(y, (-1, 80))


def test_shakespeare_has_715_roles_and_rows_of_80_characters(shakespeare):
    train = shakespeare.train
    assert (train.num_clients, shakespeare.classes, len(ALPHABET)) == (715, 90, 86)
    assert train.x.shape[1:] == train.y.shape[1:] == (80,)
    assert train.x.max() < 90 and shakespeare.kind == "characters"


@pytest.mark.parametrize("client", [0, 1, 200, 714])
def test_a_roles_rows_are_its_speeches_cut_naively(shakespeare, shakespeare_files, client):
    name = str(shakespeare.train.names[client])
    path = shakespeare_files / "shakespeare_train.sqlite"
    x, y = naive_rows(fedjax_client(path, name, "snippets")[1])
    assert np.array_equal(shakespeare.train.client(client)[0], x)
    assert np.array_equal(shakespeare.train.client(client)[1], y)
    flat_x, flat_y = x.ravel(), y.ravel()
    pads = int((flat_y == 0).sum())
    assert np.array_equal(flat_x[1 : len(flat_x) - pads], flat_y[: len(flat_y) - pads - 1])


def test_worker_processes_map_the_files_themselves_and_agree_with_serial(femnist, cache):
    shared = Shared()
    handle = shared.share(femnist.train.x)
    assert handle.file == str(cache / "ready" / "femnist" / "x.npy") and not shared.descriptors
    assert np.array_equal(handle.open(), femnist.train.x)
    ends = []
    for engine in ("serial", "processes"):
        changes = [*ONE_ROUND, "model=mlp", "clients_per_round=2", f"engine={engine}", "workers=2"]
        with build(load_settings("femnist", changes)) as simulation:
            list(simulation)
            ends.append(simulation.w.clone())
    assert torch.equal(*ends)


@pytest.mark.parametrize("preset", ["cifar10", "cifar100-pam", "femnist", "shakespeare"])
def test_a_preset_plays_a_real_round_and_learns_a_fixed_batch(preset, request):
    request.getfixturevalue(preset.removesuffix("-pam"))
    ours = ["data=cifar100", "split=pachinko"] if preset == "cifar100-pam" else []
    settings = load_settings(preset, [*ONE_ROUND, "steps=3", *ours])
    with build(settings) as simulation:
        start = simulation.w.clone()
        (record,) = simulation
        # Version 0.1.0 recorded this of `data=cifar100-pam` when it did not find TFF's file.
        assert not ours or simulation.facts()["data_checksum"] == "2ac706b1cacee8fe"
    assert record.t == 1 and len(record.cohort) == 1
    assert simulation.w.isfinite().all() and not torch.equal(simulation.w, start)
    task, kind = simulation.setup.task, "characters" if preset == "shakespeare" else "classes"
    rows = np.linspace(0, task.data.num_examples - 1, 8).astype(int)  # of several clients
    batch = Batch(*(torch.from_numpy(np.array(a[rows])) for a in (task.data.x, task.data.y)))
    with one_thread():
        losses = descent(task.workspace, start, batch, kind, settings.lr / 10)
    assert losses[-1] < losses[0]


def descent(space, w, batch, kind, lr, steps=5):
    """The loss on one batch, without dropout, before each step of gradient descent on it."""
    losses = []
    space.w.copy_(w)
    for _ in range(steps):
        space.module.eval()
        with torch.no_grad():
            output = space.module(space.transform.train(batch.x, batch.address))
        losses.append(float(objective(kind).loss(output, batch.y)))
        space.w.sub_(space.gradient(batch), alpha=lr)
    return losses

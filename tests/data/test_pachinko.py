"""Pachinko allocation against a naive simulation of it, and TFF's file of its outcome."""

from __future__ import annotations

import lzma
import random
import sqlite3
from dataclasses import replace

import numpy as np
import pytest

from wima.core.errors import UsageError
from wima.data.cache import RawData, prepare
from wima.data.federated import FederatedData
from wima.data.load import load
from wima.data.manage import import_data
from wima.data.sets.cifar import CIFAR100, PAM, parse_example, read_pam
from wima.data.split import pachinko

SIZE = 100  # images per client
GROUP_OF = np.random.default_rng(0).permutation(np.repeat(np.arange(20), 5))  # 100 classes


def labels(per_class):
    """Labels and groups of a balanced set, in random order."""
    y = np.random.default_rng(1).permutation(np.repeat(np.arange(100), per_class))
    return y, GROUP_OF[y]


def tables(y, clients):
    """How many images of each class, and of each group, each client has."""
    fine = np.zeros((clients.max() + 1, 100), np.int64)
    np.add.at(fine, (clients, y), 1)
    coarse = np.zeros((len(fine), 20), np.int64)
    np.add.at(coarse.T, GROUP_OF, fine.T)
    return fine, coarse


def naive_pachinko(per_class, seed):
    """The process as it is told, by Python's own random numbers: a table of classes per client."""
    draw = random.Random(seed)

    def dirichlet(names, concentration):
        parts = {name: draw.gammavariate(concentration, 1) for name in names}
        total = sum(parts.values())
        return {name: part / total for name, part in parts.items()}

    def pick(shares):
        return draw.choices(list(shares), list(shares.values()))[0]

    stock = dict.fromkeys(range(100), per_class)
    table = []
    for _ in range(100 * per_class // SIZE):
        groups = {int(GROUP_OF[c]) for c, left in stock.items() if left}
        theta = dirichlet(range(20), 0.1)
        theta_of = {g: dirichlet(np.argsort(GROUP_OF)[5 * g : 5 * g + 5], 10) for g in range(20)}
        theta = {g: share for g, share in theta.items() if g in groups}
        theta_of = {
            g: {c: s for c, s in shares.items() if stock[c]} for g, shares in theta_of.items()
        }
        row = [0] * 100
        for _ in range(SIZE):
            group = pick(theta if sum(theta.values()) > 0 else dict.fromkeys(theta, 1))
            fine = pick(theta_of[group])
            row[fine] += 1
            stock[fine] -= 1
            if not stock[fine]:
                del theta_of[group][fine]
            if not theta_of[group]:
                del theta[group]
        table.append(row)
    fine = np.array(table)
    coarse = np.zeros((len(fine), 20), np.int64)
    np.add.at(coarse.T, GROUP_OF, fine.T)
    return fine, coarse


def statistics(fine, coarse):
    """What the skew of a split shows in: means over its clients."""
    p = coarse / coarse.sum(axis=1, keepdims=True)
    within = ((fine / SIZE) ** 2).sum(axis=1).mean()  # chance that two images share a class
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1).mean()
    return np.array([(fine > 0).sum(1).mean(), (coarse > 0).sum(1).mean(), entropy, within])


@pytest.fixture(scope="module")
def full_size():
    y, groups = labels(500)
    return y, pachinko(y, groups, 500, seed=0)


def test_five_hundred_clients_with_a_hundred_images_each_share_out_all_images(full_size):
    y, clients = full_size
    assert np.bincount(clients).tolist() == [100] * 500
    assert tables(y, clients)[0].sum(axis=0).tolist() == [500] * 100


@pytest.mark.lab
def test_its_skew_is_that_of_the_naive_process_at_full_size(full_size):
    ours = statistics(*tables(*full_size))
    naive = np.array([statistics(*naive_pachinko(500, seed)) for seed in range(6)])
    spread = naive.std(axis=0, ddof=1) * (1 + 1 / 6) ** 0.5
    # t distribution with 5 degrees of freedom: |t| > 7 once in a thousand, of four statistics.
    assert (np.abs(ours - naive.mean(axis=0)) < 7 * spread).all(), (ours, naive.mean(axis=0))
    print("classes, coarse labels, entropy, repeats:", ours.round(3), naive.mean(0).round(3))


@pytest.mark.lab
def test_its_skew_is_that_of_the_naive_process_over_many_seeds():
    y, groups = labels(20)  # 20 clients a seed; the last ones get the leftovers, as at full size
    ours = np.array([statistics(*tables(y, pachinko(y, groups, 20, seed))) for seed in range(8)])
    naive = np.array([statistics(*naive_pachinko(20, seed)) for seed in range(100)])
    error = naive.std(axis=0, ddof=1) * (1 / 8 + 1 / 100) ** 0.5
    assert (np.abs(ours.mean(axis=0) - naive.mean(axis=0)) < 4 * error).all()


def test_the_same_seed_gives_the_same_split_and_another_seed_another():
    y, groups = labels(10)
    first = pachinko(y, groups, 10, seed=3)
    assert np.array_equal(first, pachinko(y, groups, 10, seed=3))
    assert not np.array_equal(first, pachinko(y, groups, 10, seed=4))


def test_what_cannot_be_dealt_evenly_stays_with_nobody():
    y, groups = labels(10)
    sizes = np.bincount(pachinko(y, groups, 7, seed=0) + 1)
    assert sizes.tolist() == [1000 - 7 * 142] + [142] * 7


@pytest.mark.parametrize("clients", [0, -1, 1001])
def test_a_number_of_clients_that_cannot_be_is_refused(clients):
    y, groups = labels(10)
    with pytest.raises(UsageError, match=rf"clients must be in 1 ... 1000, got {clients}"):
        pachinko(y, groups, clients, seed=0)
    with pytest.raises(UsageError, match="1000 labels but 999 groups"):
        pachinko(y, groups[1:], 5, seed=0)


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, content):
    """A length-delimited field of a protocol buffer."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def example(**lists):
    """A serialized tf.train.Example of integer lists."""
    entries = b""
    for name, values in lists.items():
        numbers = [varint(value % 2**64) for value in values]
        ints = field(3, field(1, b"".join(numbers)))
        entries += field(1, field(1, name.encode()) + field(2, ints))
    return field(1, entries)


def an_image(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3))
    return {"image": pixels.ravel().tolist(), "label": [seed], "coarse_label": [seed % 20]}


def write_tff(path, rows):
    """TFF's table of examples."""
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE examples (split_name, client_id, serialized_example_proto)")
        db.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
    db.close()
    return path


def some_rows():
    clients = ("train", "7"), ("train", "12"), ("train", "7"), ("test", "0")
    return [(*who, example(**an_image(seed))) for seed, who in enumerate(clients, 5)]


def test_integer_lists_are_read_as_they_were_written():
    lists = {"label": [0], "image": [0, 1, 127, 128, 255, 300, 2**40]}
    assert {k: v.tolist() for k, v in parse_example(example(**lists)).items()} == lists


@pytest.mark.parametrize("form", ["sqlite", lzma.FORMAT_XZ, lzma.FORMAT_ALONE])
def test_tffs_file_is_read_as_it_was_written(tmp_path, form):
    path = write_tff(tmp_path / "cifar100.sqlite", some_rows())
    if form != "sqlite":
        data = lzma.compress(path.read_bytes(), form)
        path.unlink()
        path = tmp_path / "cifar100.sqlite.lzma"
        path.write_bytes(data)
    for source in (path, tmp_path):  # the file, or the folder that holds it
        pool = read_pam(source)
        assert pool.clients.tolist() == ["12", "7", "7"] and pool.y.tolist() == [6, 5, 7]
        assert pool.y_test.tolist() == [8]
        pixels = np.reshape(an_image(5)["image"], (32, 32, 3))
        assert np.array_equal(pool.x[1], pixels.transpose(2, 0, 1)) and pool.x.dtype == np.uint8


def test_tffs_clients_are_the_clients(tmp_path, monkeypatch):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    import_data("cifar100-pam", write_tff(tmp_path / "cifar100.sqlite", some_rows()))
    bundle = load("cifar100-pam")
    assert list(bundle.train.names) == ["12", "7"] and bundle.train.sizes.tolist() == [1, 2]
    with pytest.raises(UsageError, match="number"):  # they cannot be other than they are
        load("cifar100-pam", clients=20)


def test_without_tffs_file_its_name_does_not_stand_for_our_own_allocation(tmp_path, monkeypatch):
    monkeypatch.setenv("WIMA_DATA", str(tmp_path))
    y, groups = labels(500)
    small = np.zeros((len(y), 3, 1, 1), np.uint8)
    ours = RawData(small, y, small[:9], y[:9], 100, groups=groups)
    prepare(replace(CIFAR100, read=lambda source: ours), tmp_path)
    monkeypatch.setattr("pooch.retrieve", unreachable)
    with pytest.raises(UsageError, match=r"cannot be downloaded(.|\n)*0.1.0.* split=pachinko\.$"):
        load("cifar100-pam")
    train = load("cifar100", split="pachinko", seed=3).train
    owners = pachinko(y, groups, 500, seed=3)
    expected = FederatedData.from_arrays(small, y, owners, classes=100)
    assert np.array_equal(train.y, expected.y) and np.array_equal(train.sizes, [100] * 500)
    assert load("cifar100", split="pachinko", clients=20).train.num_clients == 20
    with pytest.raises(UsageError, match="split=pachinko needs groups of classes"):
        load("digits", split="pachinko")


def unreachable(*given, **options):
    raise OSError("no network")


GOOD = example(**an_image(3))


@pytest.mark.parametrize(
    "blob",
    [
        GOOD[:-1],
        GOOD[: len(GOOD) // 2],
        b"\xff" * 40,
        b"text",
        example(label=[1], coarse_label=[1]),
        example(**an_image(3) | {"image": [1, 2, 3]}),
        example(**an_image(3) | {"image": [256] * 3072}),
        example(**an_image(3) | {"image": [-1] * 3072}),
        example(**an_image(3) | {"label": []}),
        "text instead of a blob",
        None,
    ],
    ids=range(11),
)
def test_a_damaged_example_is_refused_by_the_files_name(tmp_path, blob):
    path = write_tff(tmp_path / "cifar100.sqlite", [*some_rows(), ("train", "1", blob)])
    with pytest.raises(UsageError, match=rf"{path}: damaged, or not TFF's"):
        prepare(PAM, path)


def test_damage_inside_a_compressed_file_is_told_of_that_file(tmp_path):
    plain = write_tff(tmp_path / "a.sqlite", [("train", "1", b"noise")])
    path = tmp_path / "cifar100.sqlite.lzma"
    path.write_bytes(lzma.compress(plain.read_bytes()))
    with pytest.raises(UsageError, match=rf"{path}: damaged, or not TFF's"):
        prepare(PAM, path)


def test_what_is_no_file_of_tffs_is_refused(tmp_path):
    with pytest.raises(UsageError, match=rf"{tmp_path}: no cifar100.sqlite.lzma and no"):
        read_pam(tmp_path)
    path = tmp_path / "cifar100.sqlite.lzma"
    whole = lzma.compress(write_tff(tmp_path / "a.sqlite", some_rows()).read_bytes())
    for content in (b"<html>", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=rf"{path}: damaged, or not TFF's"):
            prepare(PAM, path)
    path = write_tff(tmp_path / "cifar100.sqlite", some_rows()[:3])
    with pytest.raises(UsageError, match=rf"{path}: damaged, or not .*no examples in split 'test'"):
        prepare(PAM, path)

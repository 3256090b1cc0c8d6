"""CIFAR-10 and CIFAR-100 in the publisher's binary version, and TFF's federated CIFAR-100.

A record of the binary version is the label bytes (CIFAR-100: coarse, fine), then 3,072 bytes of
pixels, plane by plane.  TFF's file is an lzma-compressed SQLite table of serialized
tf.train.Examples, which map names to lists; here `image` (3,072 integers, height x width x
channel), `label` and `coarse_label`.

    examples(split_name, client_id, serialized_example_proto)

There is no licence text; cite Krizhevsky, Learning Multiple Layers of Features (2009).
"""

import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from wima.core.errors import UsageError, check
from wima.data.cache import DataSet, RawData, Remote, open_sqlite
from wima.data.federated import Array
from wima.data.sets import REMARKS
from wima.data.transform import Images

PIXELS = 3 * 32 * 32
CLASSES10 = "airplane automobile bird cat deer dog frog horse ship truck"
CLASSES100 = (
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus "
    "butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach "
    "couch crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster "
    "house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree "
    "motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
    "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket "
    "rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar "
    "sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip "
    "turtle wardrobe whale willow_tree wolf woman worm"
)
ARCHIVE = "cifar100.sqlite.lzma"  # TFF's


def member(source: Path, name: str) -> bytes:
    """The file of that name in a folder, in an archive, or in an archive in a folder."""
    if source.is_dir():
        if files := sorted(source.rglob(name)):
            return files[0].read_bytes()
        archives = sorted(source.glob("*.tar.gz"))
        check(bool(archives), f"{source}: no file {name} in this folder, and no .tar.gz archive.")
        source = archives[0]
    with tarfile.open(source) as archive:
        for entry in archive:
            if entry.isreg() and Path(entry.name).name == name:
                content = archive.extractfile(entry)
                return content.read() if content else b""
    raise UsageError(f"{source}: no file {name} in this archive.")


def records(source: Path, name: str, count: int, labels: int) -> tuple[Array, Array]:
    """Label bytes (count, labels) and images (count, 3, 32, 32) of one file."""
    data, size = member(source, name), count * (labels + PIXELS)
    check(len(data) == size, f"{source}: {name} must have {size:,} bytes, got {len(data):,}.")
    table = np.frombuffer(data, np.uint8).reshape(count, labels + PIXELS)
    return table[:, :labels].astype(np.int64), table[:, labels:].reshape(count, 3, 32, 32)


def read_binary(source: Path, train: Sequence[str], test: str, labels: int) -> RawData:
    """50,000 training and 10,000 test images, in the published order; labels: of each image."""
    parts = [records(source, name, 50_000 // len(train), labels) for name in train]
    y, x = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    y_test, x_test = records(source, test, 10_000, labels)
    if labels == 1:
        return RawData(x, y[:, 0], x_test, y_test[:, 0], 10)
    most = y[:, 0].max()
    check(most < 20, f"{source}: train.bin: coarse labels must be in 0..19, got {most}.")
    return RawData(x, y[:, 1], x_test, y_test[:, 1], 100, groups=y[:, 0])


def read_pam(source: Path) -> RawData:
    """500 training and 100 test clients with 100 images each."""
    if source.is_dir():
        files = [source / name for name in (ARCHIVE, "cifar100.sqlite") if (source / name).exists()]
        check(bool(files), f"{source}: no {ARCHIVE} and no cifar100.sqlite in this folder.")
        source = files[0]
    if source.suffix == ".sqlite":
        return _read_tables(source)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "cifar100.sqlite"
        with lzma.open(source) as packed, plain.open("wb") as file:
            shutil.copyfileobj(packed, file)
        return _read_tables(plain)


def _read_tables(path: Path) -> RawData:
    query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? "
    query += "ORDER BY client_id, rowid"
    parts = []
    with closing(open_sqlite(path)) as db:
        for split in ("train", "test"):
            images, labels, clients = [], [], []
            for client, blob in db.execute(query, (split,)):
                example = parse_example(blob)
                image = example["image"].reshape(32, 32, 3)
                if image.min() < 0 or image.max() > 255:
                    raise ValueError("pixels must be bytes")
                images.append(image.astype(np.uint8))
                labels.append(example["label"][0])
                clients.append(client.decode() if isinstance(client, bytes) else str(client))
            if not images:
                raise ValueError(f"no examples in split {split!r}")
            x = np.stack(images).transpose(0, 3, 1, 2)
            parts.append((x, np.array(labels), np.array(clients)))
    (x, y, clients_of), (x_test, y_test, _) = parts
    return RawData(x, y, x_test, y_test, 100, clients_of)


def parse_example(data: bytes) -> dict[str, Array]:
    """The integer lists of a serialized tf.train.Example, by name."""
    lists = {}
    for _, features in _fields(data):  # Example.features
        for _, entry in _fields(features):  # Features.feature, a map
            parts = dict(_fields(entry))
            integers = dict(_fields(parts[2]))[3]  # Feature.int64_list
            lists[parts[1].decode()] = _varints(dict(_fields(integers))[1])
    return lists


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The length-delimited fields of a message: number and content."""
    at = 0
    while at < len(data):
        key = data[at]
        end = next(k for k in range(at + 1, len(data)) if data[k] < 128) + 1
        size = int(_varints(data[at + 1 : end])[0])
        if key & 7 != 2 or end + size > len(data):
            raise ValueError("not a message, or truncated")
        yield key >> 3, data[end : end + size]
        at = end + size


def _varints(data: bytes) -> Array:
    """Packed integers: 7 bits per byte, the lowest first; only the last byte is below 128."""
    digits = np.frombuffer(data, np.uint8).astype(np.int64)
    starts = np.flatnonzero(np.append(True, digits[:-1] < 128))
    place = np.arange(len(digits)) - np.repeat(starts, np.diff(starts, append=len(digits)))
    integers: Array = np.add.reduceat((digits & 127) << 7 * place, starts)
    return integers


# The mean and standard deviation of each channel.
cifar10_images = partial(Images, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
cifar100_images = partial(Images, (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def _binary(
    classes: int, md5: str, transform: partial[Images], names: str, train: list[str], test: str
) -> DataSet:
    """A data set of the binary version; names of its classes, and the files in its archive."""
    archive = f"cifar-{classes}-binary.tar.gz"
    return DataSet(
        f"cifar{classes}",
        (Remote(f"https://www.cs.toronto.edu/~kriz/{archive}", f"md5:{md5}"),),
        partial(read_binary, train=train, test=test, labels=1 if classes == 10 else 2),
        transform,
        expects=f"{archive}, or a folder with {train[0]} ... {test}",
        labels=tuple(names.split()),
    )


BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)]
MD5_10, MD5_100 = "c32a1d4ab5d03f1284b67883e8d87530", "03b5dce01913d631647c71ecec9e9cb8"
CIFAR10 = _binary(10, MD5_10, cifar10_images, CLASSES10, BATCHES, "test_batch.bin")
CIFAR100 = _binary(100, MD5_100, cifar100_images, CLASSES100, ["train.bin"], "test.bin")
DIGEST = "sha256:23d3916c9caa33395737ee560cc7cb77bbd05fc7b73647ee7be3a7e764172939"
PAM = DataSet(
    "cifar100-pam",
    (Remote(f"https://storage.googleapis.com/tff-datasets-public/{ARCHIVE}", DIGEST),),
    read_pam,
    cifar100_images,
    expects=f"TFF's {ARCHIVE} or the unpacked cifar100.sqlite",
    remark=REMARKS["cifar100-pam"],
    labels=CIFAR100.labels,
    clients=500,
)

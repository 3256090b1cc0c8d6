"""CIFAR-10 and CIFAR-100 in the publisher's binary version.

A record is the label bytes (CIFAR-100: coarse, fine), then 3,072 bytes of pixels, plane by plane.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from wima.core.errors import UsageError, check
from wima.data.cache import DataSet, RawData, Remote
from wima.data.federated import Array, check_labels
from wima.data.transform import Images, Transform
from wima.storage.reading import check_file, check_unpacked

PIXELS = 3 * 32 * 32
GZIP = b"\x1f\x8b"  # its first bytes
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
TERMS = "No licence text; cite Krizhevsky, Learning Multiple Layers of Features (2009)."


class _Limited:
    """An archive's unpacked bytes, refused beyond what a file of its size can plausibly hold."""

    def __init__(self, path: Path, file: BinaryIO | gzip.GzipFile) -> None:
        self._path, self._file, self.tell = path, file, file.tell

    def read(self, size: int) -> bytes:
        check_unpacked(self._path, self._file.tell() + size)
        return self._file.read(size)

    def seek(self, position: int) -> int:
        check_unpacked(self._path, position)
        return self._file.seek(position)


def member(source: Path, name: str, size: int) -> bytes:
    """The file of that name in a folder, in an archive, or in an archive in a folder.

    Links in archives are not followed.  Of a file that is too long, one extra byte is read.
    """
    if source.is_dir():
        found = sorted(source.rglob(name))
        if found:
            check_file(found[0])
            with found[0].open("rb") as file:
                return file.read(size + 1)
        archives = sorted(source.glob("*.tar.gz"))
        check(bool(archives), f"{source}: no file {name} in this folder, and no .tar.gz archive.")
        source = archives[0]
    try:
        check_file(source)
        with source.open("rb") as first:
            opened = gzip.open if first.read(2) == GZIP else open
        with opened(source, "rb") as packed, _tar(_Limited(source, packed)) as archive:
            files = (m for m in archive if m.isreg() and Path(m.name).name == name)
            path = next(files, None)
            check(path is not None, f"{source}: no file {name} in this archive.")
            assert path is not None
            content = archive.extractfile(path)
            return b"" if content is None else content.read(size + 1)
    except UsageError:
        raise
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        raise UsageError(f"{source}: truncated, or not a tar archive: {error}") from None


def _tar(file: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=file, mode="r:")


def records(source: Path, name: str, count: int, labels: int) -> tuple[Array, Array]:
    """Label bytes (count, labels) and images (count, 3, 32, 32) of one file."""
    size = count * (labels + PIXELS)
    data = member(source, name, size)
    hint = "; is it truncated?" if len(data) < size else " or more."
    got = f"{len(data):,}{hint}"
    check(len(data) == size, f"{source}: {name} must have {size:,} bytes, got {got}")
    table = np.frombuffer(data, np.uint8).reshape(count, labels + PIXELS)
    return table[:, :labels], table[:, labels:].reshape(count, 3, 32, 32)


def read_cifar10(source: Path) -> RawData:
    """50,000 training and 10,000 test images of 10 classes, in the published order."""
    parts = [records(source, f"data_batch_{i}.bin", 10_000, 1) for i in range(1, 6)]
    y, x = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    y_test, x_test = records(source, "test_batch.bin", 10_000, 1)
    return RawData(x, _labels(y), x_test, _labels(y_test), 10)


def read_cifar100(source: Path) -> RawData:
    """50,000 training and 10,000 test images of 100 classes in 20 groups."""
    y, x = records(source, "train.bin", 50_000, 2)
    y_test, x_test = records(source, "test.bin", 10_000, 2)
    groups = _labels(y[:, :1])
    try:
        check_labels(groups, 20, "coarse label")
    except UsageError as error:
        raise UsageError(f"{source}: train.bin: {error}") from None
    return RawData(x, _labels(y[:, 1:]), x_test, _labels(y_test[:, 1:]), 100, groups=groups)


def _labels(column: Array) -> Array:
    return column[:, 0].astype(np.int64)


def cifar10_images(augment: str = "each") -> Transform:
    return Images((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), augment)


def cifar100_images(augment: str = "each") -> Transform:
    return Images((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), augment)


CIFAR10 = DataSet(
    "cifar10",
    TERMS,
    (
        Remote(
            "cifar-10-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    read_cifar10,
    cifar10_images,
    expects="cifar-10-binary.tar.gz, or a folder with data_batch_1.bin ... test_batch.bin",
    labels=tuple(CLASSES10.split()),
)
CIFAR100 = DataSet(
    "cifar100",
    TERMS,
    (
        Remote(
            "cifar-100-binary.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
            "md5:03b5dce01913d631647c71ecec9e9cb8",
        ),
    ),
    read_cifar100,
    cifar100_images,
    expects="cifar-100-binary.tar.gz, or a folder with train.bin and test.bin",
    labels=tuple(CLASSES100.split()),
)

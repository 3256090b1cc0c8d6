"""Landmarks-User-160k (GLDv2): photographs by their photographers.

The split consists of two CSV files, federated_train.csv (user_id, image_id, class) and test.csv
(image_id, class); the images are in GLDv2's layout, a/b/c/abc....jpg by the first letters of the
id.  Images are decoded when a batch needs them; x holds their numbers.
"""

import csv
import io
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wima.core.errors import RunError, UsageError, check, check_count
from wima.core.randomness import rng
from wima.data.cache import Remote, fetch, raw
from wima.data.federated import Array, Bundle, FederatedData, as_names
from wima.data.transform import Address, Transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
SPLIT = "landmarks-user-160k.zip"
ADDRESS = f"http://storage.googleapis.com/gresearch/federated-vision-datasets/{SPLIT}"
DIGEST = "md5:53c36bd7d5fc12f927af2820b7e4a57c"
BILINEAR = 2  # of Pillow's filters


@dataclass(frozen=True)
class ImageFiles(Transform):
    """Image numbers to pixels: decoded, cropped, scaled and normalised as for ImageNet.

    Training: a random crop of 8 to 100 % of the area, resized, flipped half of the time.
    Evaluation: the shorter side resized to 8/7 of the size, then a centre crop.
    """

    folder: Path
    ids: Array  # image ids
    size: int = 224

    def train(self, x: Tensor, address: Address) -> Tensor:
        random = rng("augment", *address)
        return torch.stack([self._normal(self._random_part(int(i), random)) for i in x])

    def evaluate(self, x: Tensor) -> Tensor:
        return torch.stack([self._normal(self._centre(int(i))) for i in x])

    def path(self, number: int) -> Path:
        """Where GLDv2 keeps an image."""
        name = str(self.ids[number])
        return self.folder / name[0] / name[1] / name[2] / f"{name}.jpg"

    def _open(self, number: int) -> Any:
        """The photograph, in memory."""
        from PIL import Image

        path = self.path(number)
        try:
            with Image.open(path) as image:
                return image.convert("RGB")
        except Exception as error:  # damaged bytes can raise anything in PIL
            raise RunError(f"{path}: cannot be read as an image: {error}") from None

    def _random_part(self, number: int, random: np.random.Generator) -> Array:
        image = self._open(number)
        width, height = image.size
        area, ratio = random.uniform(0.08, 1.0), np.exp(random.uniform(*np.log([3 / 4, 4 / 3])))
        h = min(height, max(1, round((height * width * area / ratio) ** 0.5)))
        w = min(width, max(1, round((height * width * area * ratio) ** 0.5)))
        top, left = int(random.integers(height - h + 1)), int(random.integers(width - w + 1))
        part = image.crop((left, top, left + w, top + h)).resize((self.size, self.size), BILINEAR)
        return np.asarray(part)[:, ::-1] if random.random() < 0.5 else np.asarray(part)

    def _centre(self, number: int) -> Array:
        image = self._open(number)
        scale = self.size * 8 / 7 / min(image.size)
        w, h = (max(self.size, round(side * scale)) for side in image.size)
        top, left = (h - self.size) // 2, (w - self.size) // 2
        pixels = np.asarray(image.resize((w, h), BILINEAR))
        return pixels[top : top + self.size, left : left + self.size]

    @staticmethod
    def _normal(pixels: Array) -> Tensor:
        x = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float() / 255
        return (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def load_landmarks(
    split_file: str | None = None, images: str | None = None, size: int = 224
) -> Bundle:
    """The data set from its split (folder or .zip) and a folder of images in GLDv2's layout.

    By default, the published split is downloaded, and the images are in the cache.
    """
    check_count("size", size)
    for name, path in (("split_file", split_file), ("images", images)):
        check(isinstance(path, str | None), f"{name} must be a path, got {path!r}.")
    check(
        find_spec("PIL") is not None,
        "landmarks needs Pillow, which is not installed: pip install 'wima[landmarks]'",
    )
    published = (Remote(ADDRESS, DIGEST),)
    split = Path(split_file or fetch("landmarks", published, SPLIT) / SPLIT).expanduser()
    folder = Path(images or raw("landmarks") / "train").expanduser()
    train = _table(split, "federated_train.csv", ("user_id", "image_id", "class"))
    test = _table(split, "test.csv", ("image_id", "class"))
    users = as_names([row["user_id"] for row in train])
    ids = np.array([row["image_id"] for row in train + test])
    labels = np.array([int(row["class"]) for row in train + test])
    classes, n = int(labels.max()) + 1, len(train)
    transform = ImageFiles(folder, ids, size)
    missing = [transform.path(i) for i in range(len(ids)) if not transform.path(i).is_file()]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(ids)} images are missing, first {missing[0]}; put GLDv2's "
            "training images there (https://s3.amazonaws.com/google-landmark/train/images_NNN.tar)."
        )
    data = FederatedData.from_arrays(np.arange(n), labels[:n], users, classes=classes)
    return Bundle(data, np.arange(n, len(ids)), labels[n:], classes, transform)


def _table(split: Path, name: str, columns: tuple[str, ...]) -> list[dict[str, str]]:
    where = f"{split}/{name}"
    reader = csv.DictReader(io.StringIO(_text(split, name)))
    got = tuple(reader.fieldnames or ())
    check(set(columns) <= set(got), f"{where}: expected columns {columns}, got {got}.")
    rows = []
    for row in reader:
        line, image, label = f"{where}, line {reader.line_num}", row["image_id"], row["class"]
        check(None not in row.values() and bool(image), f"{line}: incomplete row.")
        check(image.isalnum() and len(image) >= 3, f"{line}: bad id {image!r:.80}.")
        fits = label.isdecimal() and len(label) < 10
        check(fits, f"{line}: class must be a number, 0 or more, got {label!r:.80}.")
        rows.append(row)
    check(bool(rows), f"{where}: no rows.")
    return rows


def _text(split: Path, name: str) -> str:
    try:
        if split.is_dir():
            return next(iter(split.rglob(name))).read_text("utf-8-sig")
        with zipfile.ZipFile(split) as archive:
            member = next(m for m in archive.namelist() if Path(m).name == name)
            return archive.read(member).decode()
    except StopIteration:
        raise UsageError(f"{split}: has no file {name}.") from None
    except Exception as error:  # damaged bytes can raise anything in zipfile
        raise UsageError(f"{split}: cannot be read: {error}") from None

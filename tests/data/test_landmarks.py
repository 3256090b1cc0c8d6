"""Landmarks: a split in CSV files and photographs in GLDv2's folders, made small."""

from __future__ import annotations

import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from wima.core.errors import RunError, UsageError
from wima.data.load import load
from wima.runs.build import build
from wima.runs.settings import make_settings

TRAIN = [  # user, image, class
    ("u2", "abc0", 0),
    ("u1", "abd1", 1),
    ("u2", "bcd2", 2),
    ("u1", "0ef3", 0),
    ("u1", "0ee4", 2),
]
TEST = [("ffa5", 1), ("ffa6", 2)]
SIZES = [(50, 40), (40, 50), (33, 90), (64, 64), (20, 21), (300, 200), (32, 32)]


def path_of(images, image_id):
    return images / image_id[0] / image_id[1] / image_id[2] / f"{image_id}.jpg"


def table(header, rows):
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


@pytest.fixture
def landmarks(tmp_path, monkeypatch):
    """Folders `split` and `train` with seven photographs of different sizes."""
    monkeypatch.setenv("WIMA_DATA", str(tmp_path / "cache"))
    (tmp_path / "split").mkdir()
    (tmp_path / "split/federated_train.csv").write_text(table("user_id,image_id,class", TRAIN))
    (tmp_path / "split/test.csv").write_text(table("image_id,class", TEST))
    ids = [image for _, image, _ in TRAIN] + [image for image, _ in TEST]
    for number, (image, size) in enumerate(zip(ids, SIZES, strict=True)):
        path = path_of(tmp_path / "train", image)
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path, quality=95)
    return tmp_path


def loaded(folder, split="split", **options):
    return load(
        "landmarks", split_file=str(folder / split), images=str(folder / "train"), **options
    )


def settings(folder, **changes):
    data = {"name": "landmarks", "split_file": f"{folder}/split", "images": f"{folder}/train"}
    table = {"data": {**data, "size": 32}, "model": "mobilenetv2", "engine": "serial"}
    table |= {"rounds": 1, "clients_per_round": 2, "batch_size": 2, "lr": 0.01}
    return make_settings(table | changes)


def test_photographers_are_clients_and_their_photographs_keep_their_classes(landmarks):
    bundle = loaded(landmarks, size=32)
    assert list(bundle.train.names) == ["u1", "u2"] and bundle.classes == 3
    for user, numbers, y in ((0, [1, 3, 4], [1, 0, 2]), (1, [0, 2], [0, 2])):
        assert bundle.train.client(user)[0].tolist() == numbers
        assert bundle.train.client(user)[1].tolist() == y
    assert bundle.y_test.tolist() == [1, 2]
    ids = [str(bundle.transform.ids[number]) for number in bundle.x_test]
    assert ids == [image for image, _ in TEST]


def test_a_zip_of_the_split_is_as_good_as_its_folder(landmarks):
    with zipfile.ZipFile(landmarks / "split.zip", "w") as archive:
        for name in ("federated_train.csv", "test.csv"):
            archive.write(landmarks / "split" / name, f"landmarks-user-160k/{name}")
    one, other = loaded(landmarks), loaded(landmarks, "split.zip")
    assert np.array_equal(one.train.x, other.train.x)
    assert np.array_equal(one.train.y, other.train.y)
    assert list(one.transform.ids) == list(other.transform.ids)


@pytest.mark.parametrize("size", [16, 32, 224])
def test_photographs_of_any_shape_come_out_square(landmarks, size):
    bundle = loaded(landmarks, size=size)
    x = torch.arange(7)
    for images in (bundle.transform.train(x, (0,)), bundle.transform.evaluate(x)):
        assert images.shape == (7, 3, size, size) and images.dtype == torch.float32
        assert images.isfinite().all()


def test_training_photographs_depend_on_the_address_and_evaluation_on_nothing(landmarks):
    transform, x = loaded(landmarks, size=32).transform, torch.arange(5)
    first = transform.train(x, (0, 1, 2, 3))
    assert torch.equal(first, transform.train(x, (0, 1, 2, 3)))
    assert not torch.equal(first, transform.train(x, (0, 1, 2, 4)))
    assert torch.equal(transform.evaluate(x), transform.evaluate(x))
    assert torch.equal(transform.evaluate(x)[2:3], transform.evaluate(x[2:3]))


def test_evaluation_is_the_centre_normalised_as_for_imagenet(landmarks):
    path = path_of(landmarks / "train", "ffa6")
    pixels = np.asarray(Image.open(path).resize((64, 64), Image.Resampling.BILINEAR))
    # Of size 56 the shorter side becomes 56 * 8 / 7 = 64; the centre starts at (64 - 56) / 2 = 4.
    centre = pixels[4:60, 4:60].transpose(2, 0, 1) / 255.0
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = (centre - mean[:, None, None]) / std[:, None, None]
    got = loaded(landmarks, size=56).transform.evaluate(torch.tensor([6]))[0]
    assert np.abs(got.numpy() - expected).max() < 1e-5


def test_a_plain_photograph_stays_plain_whatever_part_is_taken(landmarks):
    Image.new("RGB", (70, 30), (200, 100, 50)).save(path_of(landmarks / "train", "abc0"))
    Image.new("L", (30, 70), 128).save(path_of(landmarks / "train", "abd1"))  # grey
    transform = loaded(landmarks, size=16).transform
    for step in range(5):
        images = transform.train(torch.tensor([0, 1]), (step,))
        assert images.std(dim=(2, 3)).max() < 0.05


def test_mobilenet_trains_a_round_on_photographs(landmarks):
    with build(settings(landmarks)) as simulation:
        start = simulation.w.clone()
        (record,) = simulation
    assert np.isfinite(record.metrics["plain"]["loss"])
    assert simulation.w.isfinite().all() and not torch.equal(simulation.w, start)


def test_a_missing_photograph_is_named_before_the_run(landmarks):
    path = path_of(landmarks / "train", "bcd2")
    path.unlink()
    with pytest.raises(UsageError, match=rf"1 of 7 images are missing, first {path}"):
        loaded(landmarks)


@pytest.mark.parametrize(
    "damage", [lambda data: b"not a JPEG", lambda data: data[: len(data) // 2]]
)
@pytest.mark.parametrize("image", ["abd1", "0ee4", "ffa5"])
def test_an_unreadable_photograph_stops_the_run_by_name(landmarks, image, damage):
    path = path_of(landmarks / "train", image)
    path.write_bytes(damage(path.read_bytes()))
    transform = loaded(landmarks, size=32).transform
    number = [str(i) for i in transform.ids].index(image)
    with pytest.raises(RunError, match=rf"{path}: cannot be read as an image"):
        transform.train(torch.tensor([number]), (0,))
    with (
        pytest.raises(RunError, match=rf"^{path}: cannot be read as an image"),
        build(settings(landmarks)) as simulation,
    ):
        list(simulation)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("federated_train.csv", "user,image,class\n1,abc0,0\n", "expected columns"),
        ("test.csv", "image_id\nffa5\n", r"expected columns \('image_id', 'class'\), got"),
        ("test.csv", "", "expected columns"),
        ("test.csv", "image_id,class\n", "no rows"),
        ("test.csv", "image_id,class\nffa5\n", "line 2: incomplete row"),
        ("test.csv", "image_id,class\n,3\n", "line 2: incomplete row"),
        ("test.csv", "image_id,class\n../../etc,3\n", "line 2: bad id '../../etc'"),
        ("test.csv", "image_id,class\nab,3\n", "line 2: bad id 'ab'"),
        ("test.csv", "image_id,class\nffa5,tower\n", "class must be a number"),
        ("test.csv", "image_id,class\nffa5,1.5\n", "class must be a number"),
        ("test.csv", "image_id,class\nffa5,-1\n", "class must be a number, 0 or more, got '-1'"),
        ("test.csv", f"image_id,class\nffa5,{2**70}\n", "class must be a number"),
    ],
)
def test_a_bad_split_is_refused_by_name(landmarks, file, content, message):
    (landmarks / "split" / file).write_text(content)
    with pytest.raises(UsageError, match=rf"{landmarks}/split.*{message}"):
        loaded(landmarks)


def test_a_split_that_is_not_there_is_refused(landmarks):
    (landmarks / "split/test.csv").unlink()
    with pytest.raises(UsageError, match=r"split: has no file test.csv"):
        loaded(landmarks)
    (landmarks / "bad.zip").write_bytes(b"PK nothing")
    for name in ("bad.zip", "absent.zip"):
        with pytest.raises(UsageError, match=rf"{name}: cannot be read"):
            loaded(landmarks, name)


def test_the_home_folder_may_be_written_short(landmarks, monkeypatch):
    monkeypatch.setenv("HOME", str(landmarks))
    bundle = load("landmarks", split_file="~/split", images="~/train", size=16)
    assert bundle.train.num_examples == len(TRAIN)


@pytest.mark.parametrize("size", [0, -3, 2.5, "large"])
def test_the_size_must_be_a_number_of_pixels(landmarks, size):
    with pytest.raises(UsageError, match="size"):
        loaded(landmarks, size=size)


def test_landmarks_have_their_own_clients(landmarks):
    with pytest.raises(UsageError, match="defines its own clients"):
        load("landmarks", alpha=0.1)
    with pytest.raises(UsageError, match="Unknown option of data set landmarks 'sise'"):
        loaded(landmarks, sise=3)


def test_without_pillow_landmarks_say_what_to_install(landmarks, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"pip install 'wima\[landmarks\]'"):
        loaded(landmarks)

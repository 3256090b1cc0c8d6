"""MobileNetV2: its size and layers, and the weights from ImageNet, by file and by photo."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from tests.helpers.paths import SHARED
from wima import Flat, UsageError
from wima.models import MobileNetV2, load_imagenet

WEIGHTS = SHARED / "mobilenetv2/mobilenet_v2_imagenet_torchvision_b0353104.npz"

needs_weights = pytest.mark.skipif(
    not WEIGHTS.is_file(), reason=f"ImageNet weights are not at {WEIGHTS}"
)


@pytest.fixture(scope="module")
def original() -> MobileNetV2:
    return MobileNetV2(classes=1000, norm="batch", dropout=0.2)


def save(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """In the format that the file's name says."""
    if path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    elif path.suffix == ".safetensors":
        safetensors.torch.save_file(tensors, path)
    else:
        torch.save(tensors, path)
    return path


def derived_size() -> int:
    """Convolutions and norms of the backbone, counted from Table 2 of the paper."""
    total, inputs = 32 * 3 * 9 + 2 * 32, 32
    rows = ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1))
    for t, c, n in rows:
        for _ in range(n):
            wide = t * inputs
            expand = 0 if t == 1 else inputs * wide + 2 * wide
            total += expand + (9 * wide + 2 * wide) + (wide * c + 2 * c)
            inputs = c
    return total + inputs * 1280 + 2 * 1280


def test_number_of_parameters():
    model = MobileNetV2()
    features = sum(p.numel() for p in model.features.parameters())
    assert features == 2_223_872 == derived_size()
    assert Flat(model).layout.size == 4_821_740 == derived_size() + 1281 * 2028


@pytest.mark.parametrize("groups", [2, 8])
def test_a_group_norm_follows_every_convolution(groups):
    modules = list(MobileNetV2(classes=10, groups=groups).modules())
    norms = [layer for layer in modules if isinstance(layer, nn.GroupNorm)]
    convolutions = [layer for layer in modules if isinstance(layer, nn.Conv2d)]
    assert [n.num_channels for n in norms] == [c.out_channels for c in convolutions]
    assert len(norms) == 52 and {n.num_groups for n in norms} == {groups}
    assert not any(isinstance(layer, nn.modules.batchnorm._NormBase) for layer in modules)


def test_the_image_shrinks_by_two_to_the_five():
    features = MobileNetV2(classes=10).features
    assert features(torch.randn(1, 3, 96, 64)).shape == (1, 1280, 3, 2)


def test_options_that_are_not_there_are_refused():
    with pytest.raises(UsageError, match="must be 1, 2, 4 or 8, got 16"):
        MobileNetV2(groups=16)
    with pytest.raises(UsageError, match="norm must be one of group, batch, got 'layer'"):
        MobileNetV2(norm="layer")


# --- reading weights


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pth", ".pt"])
def test_a_saved_model_comes_back_from_every_format(tmp_path, original, ending):
    path = save(tmp_path / f"weights{ending}", original.state_dict())
    torch.manual_seed(1)
    other = MobileNetV2(classes=1000, norm="batch")
    names = load_imagenet(other, path)
    assert set(names) == set(original.state_dict())
    for name, tensor in original.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


@pytest.fixture(scope="module")
def trained(tmp_path_factory, original) -> Path:
    """A file whose tensors all differ from fresh ones: norms too."""
    tensors = {name: tensor + 1 for name, tensor in original.state_dict().items()}
    return save(tmp_path_factory.mktemp("weights") / "weights.npz", tensors)


def test_group_norms_and_the_classifier_stay_fresh(trained):
    model = MobileNetV2(classes=1000)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = set(load_imagenet(model, trained))
    assert copied == {name for name, tensor in before.items() if tensor.ndim == 4}
    with np.load(trained, allow_pickle=False) as source:
        for name, tensor in model.state_dict().items():
            expected = torch.from_numpy(source[name]) if name in copied else before[name]
            assert torch.equal(tensor, expected), name


def test_the_classifier_comes_along_when_asked_for(trained):
    model = MobileNetV2(classes=1000)
    copied = load_imagenet(model, trained, classifier=True)
    assert copied[-2:] == ("classifier.1.weight", "classifier.1.bias")
    assert (model.classifier[1].bias == 1).all()  # 0 + 1


def test_a_bound_model_is_written_through_its_vector(trained):
    flat = Flat(MobileNetV2(classes=5, norm="batch"))
    load_imagenet(flat.module, trained, classifier=False)
    scale = flat.layout.view(flat.w, "features.0.1.weight")
    assert (scale == 2).all()  # 1 + 1
    assert (flat.layout.view(flat.w, "classifier.1.bias") == 0).all()


def test_a_classifier_of_another_size_is_refused_by_name(trained):
    model = MobileNetV2(classes=7, norm="batch")
    with pytest.raises(
        UsageError, match=r"classifier.1.weight of shape \(1000, 1280\) instead of \(7, 1280\)"
    ):
        load_imagenet(model, trained)
    with pytest.raises(UsageError, match="Set classifier=False"):
        load_imagenet(MobileNetV2(classes=7), trained, classifier=True)


def test_missing_and_misshapen_tensors_are_named_and_nothing_is_written(tmp_path, original):
    tensors = original.state_dict()
    lost = {name: t for name, t in tensors.items() if not name.startswith("features.17.")}
    bent = tensors | {"features.0.0.weight": torch.zeros(32, 3, 5, 5)}
    model = MobileNetV2(classes=10)
    before = Flat(model).w.clone()
    with pytest.raises(UsageError, match=r"no tensor features.17.conv.0.0.weight, "):
        load_imagenet(model, save(tmp_path / "lost.npz", lost))
    with pytest.raises(UsageError, match=r"0.0.weight of shape \(32, 3, 5, 5\) instead of"):
        load_imagenet(model, save(tmp_path / "bent.npz", bent))
    assert torch.equal(Flat(model).w, before)


def test_files_that_are_not_there_or_not_weights_are_refused(tmp_path):
    model = MobileNetV2(classes=10)
    with pytest.raises(UsageError, match="No such file of weights"):
        load_imagenet(model, tmp_path / "absent.npz")
    with pytest.raises(UsageError, match=r"must end in .npz, .safetensors, .pth"):
        load_imagenet(model, tmp_path / "weights.h5")
    for ending in (".npz", ".safetensors", ".pth"):
        path = tmp_path / f"text{ending}"
        path.write_text("these are no weights")
        with pytest.raises(UsageError, match="Cannot read weights"):
            load_imagenet(model, path)
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(UsageError, match="must hold a state dict, got list"):
        load_imagenet(model, tmp_path / "list.pth")


class Surprise:
    """What a hostile pickle would run."""

    def __reduce__(self):
        return pytest.fail, ("the file was executed",)


def test_nothing_in_a_file_is_executed(tmp_path):
    model = MobileNetV2(classes=10)
    torch.save({"features.0.0.weight": Surprise()}, tmp_path / "hostile.pth")
    np.savez(tmp_path / "hostile.npz", **{"features.0.0.weight": np.array([Surprise()])})
    for name in ("hostile.pth", "hostile.npz"):
        with pytest.raises(UsageError, match="Cannot read weights"):
            load_imagenet(model, tmp_path / name)


# --- the real weights


@needs_weights
def test_the_real_file_has_exactly_this_networks_tensors(original):
    with np.load(WEIGHTS, allow_pickle=False) as file:
        real = {name: file[name].shape for name in file.files}
    assert real == {name: tuple(t.shape) for name, t in original.state_dict().items()}
    assert list(real) == list(original.state_dict())


@needs_weights
def test_real_convolutions_go_into_the_federated_model():
    model = MobileNetV2()
    assert len(load_imagenet(model, WEIGHTS)) == 52
    with np.load(WEIGHTS, allow_pickle=False) as file:
        last = torch.from_numpy(file["features.18.0.weight"])
    assert torch.equal(model.features[18][0].weight, last)


def photo(name: str) -> torch.Tensor:
    """One of scikit-learn's photos: shorter side 256, centre 224x224, ImageNet's mean and std."""
    image = pytest.importorskip("PIL.Image")
    datasets = pytest.importorskip("sklearn.datasets")
    picture = image.fromarray(datasets.load_sample_image(name))
    scale = 256 / min(picture.size)
    width, height = (round(side * scale) for side in picture.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    picture = picture.resize((width, height), image.Resampling.BILINEAR)
    pixels = np.asarray(picture.crop((left, top, left + 224, top + 224)), dtype=np.float32) / 255
    mean, std = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
    return torch.from_numpy((pixels - mean) / std).permute(2, 0, 1)


# ImageNet's classes of what can be seen.  china.jpg is a tower of the Summer Palace; flower.jpg is
# a dahlia, which is no class: its cells and lamellae are a honeycomb's and a mushroom's.
SEEN = {
    "china.jpg": {698: "palace", 663: "monastery"},
    "flower.jpg": {599: "honeycomb", 947: "mushroom"},
}


@needs_weights
def test_real_photos_are_recognised(original):
    load_imagenet(original, WEIGHTS)
    original.eval()
    with torch.no_grad():
        output = original(torch.stack([photo(name) for name in SEEN])).softmax(dim=1)
    for probabilities, classes in zip(output, SEEN.values(), strict=True):
        assert probabilities.topk(2).indices.tolist() == list(classes)
        assert probabilities[list(classes)].sum() > 0.6

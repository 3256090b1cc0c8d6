"""Crops and flips, normalisation, and the losses and metrics of characters, by naive twins."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch
from torch import nn

import wima
from tests.helpers.plain_twins import plain_crop_and_flip
from wima.core.errors import UsageError
from wima.data.federated import FederatedData
from wima.data.sets.cifar import cifar10_images, cifar100_images
from wima.data.transform import Characters, Images, Ink, crop_and_flip, crop_and_flip_alike
from wima.simulation.measures.base import objective, sequence_loss

ADDRESS = (3, 1, 4, 1)


def images(n, channels=3, side=32, seed=0):
    """Random bytes, none of them 0, so that padding can be told from pixels."""
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.integers(1, 256, (n, channels, side, side), dtype=np.uint8))


def where(image, crop):
    """The (top, left, flipped) that make `crop` of `image`, by trying them all."""
    padded = np.pad(image.numpy(), ((0, 0), (4, 4), (4, 4)))
    height, width = image.shape[1:]
    found = []
    for top in range(9):
        for left in range(9):
            cut = padded[:, top : top + height, left : left + width]
            found += [(top, left, False)] if np.array_equal(cut, crop.numpy()) else []
            found += [(top, left, True)] if np.array_equal(cut[:, :, ::-1], crop.numpy()) else []
    (place,) = found
    return place


@pytest.mark.parametrize("shape", [(20, 3, 32), (5, 1, 28), (1, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_fast_crops_equal_their_plain_twin_bit_for_bit(shape, dtype):
    x = images(*shape).to(dtype)
    for step in range(10):
        fast = crop_and_flip(x, (*ADDRESS, step))
        assert torch.equal(fast, plain_crop_and_flip(x, (*ADDRESS, step)))
        assert fast.dtype == dtype and fast.shape == x.shape


def test_a_crop_is_a_piece_of_the_black_framed_image_perhaps_flipped():
    x = images(12, side=16)
    for image, crop in zip(x, crop_and_flip(x, ADDRESS), strict=True):
        where(image, crop)  # fails unless there is just one place


def test_every_image_of_a_batch_has_a_draw_of_its_own():
    same = images(1, side=16).expand(40, -1, -1, -1)
    places = {where(same[0], crop) for crop in crop_and_flip(same, ADDRESS)}
    # 40 draws of 162 places repeat about 5 times.
    assert len(places) > 20


def test_the_same_address_gives_the_same_images_and_another_one_others():
    x = images(8)
    for augment in (crop_and_flip, crop_and_flip_alike):
        assert torch.equal(augment(x, (0, 5, 2, 1)), augment(x, (0, 5, 2, 1)))
        others = [augment(x, address) for address in [(1, 5, 2, 1), (0, 6, 2, 1), (0, 5, 3, 1)]]
        assert not any(torch.equal(augment(x, (0, 5, 2, 1)), other) for other in others)


def test_all_81_places_and_both_flips_occur_about_equally_often():
    n = 162 * 100
    # One bright pixel in the middle tells where a crop was taken; a dimmer one beside it, the flip.
    x = torch.zeros(n, 1, 9, 9, dtype=torch.uint8)
    x[:, :, 4, 4], x[:, :, 4, 5] = 200, 100
    crops = crop_and_flip(x, ADDRESS)[:, 0].numpy()
    bright = (crops == 200).reshape(n, -1).argmax(axis=1)
    # A dim pixel on the bright one's right: not flipped.  Crops that cut it off are told by column.
    row, column = np.divmod(bright, 9)
    right = np.pad(crops, ((0, 0), (0, 0), (1, 1)))[np.arange(n), row, column + 2] == 100
    left = np.pad(crops, ((0, 0), (0, 0), (1, 1)))[np.arange(n), row, column] == 100
    flip = np.where(right | left, left, column == 0)  # cut off at the right, then flipped to 0
    counts = np.bincount((row * 9 + column) * 2 + flip, minlength=162)
    assert len(counts) == 162 and counts.sum() == n
    assert np.abs(counts - 100).max() < 5 * 10  # Poisson, standard deviation 10
    assert abs(flip.mean() - 0.5) < 5 * 0.5 / n**0.5


def test_fedjaxs_variant_draws_once_for_the_batch_and_never_the_ninth_place():
    x = images(6, side=12)
    places = []
    for step in range(300):
        crops = crop_and_flip_alike(x, (step,))
        places.append(where(x[0], crops[0]))
        assert places[-1] == where(x[5], crops[5])
    tops, lefts, flips = zip(*places, strict=True)
    assert set(tops) == set(lefts) == set(range(8))
    assert 0.5 - 5 * 0.5 / 300**0.5 < np.mean(flips) < 0.5 + 5 * 0.5 / 300**0.5


@pytest.mark.parametrize("make", [cifar10_images, cifar100_images])
def test_images_are_normalised_by_channel(make):
    transform, x = make(), images(4)
    mean, std = (np.array(values)[:, None, None] for values in (transform.mean, transform.std))
    exact = (x.numpy().astype(np.float64) / 255 - mean) / std
    got = transform.evaluate(x)
    assert got.dtype == torch.float32
    # Sums of size 3 at most, a few roundings of 2**-24 each.
    assert np.abs(got.numpy() - exact).max() < 3 * 4 * 2**-24


def test_training_is_augmented_and_evaluation_is_not():
    x = images(8)
    each, batch, none = (Images((0.5,) * 3, (0.2,) * 3, a) for a in ("each", "batch", "none"))
    plain = each.evaluate(x)
    assert torch.equal(plain, each.evaluate(x)) and torch.equal(plain, batch.evaluate(x))
    assert torch.equal(none.train(x, ADDRESS), plain)
    assert torch.equal(each.train(x, ADDRESS), each.evaluate(crop_and_flip(x, ADDRESS)))
    assert torch.equal(batch.train(x, ADDRESS), each.evaluate(crop_and_flip_alike(x, ADDRESS)))
    with pytest.raises(UsageError, match=r"Unknown augmentation 'eech'; did you mean 'each'\?"):
        cifar10_images(augment="eech")


def test_ink_is_one_minus_paper_in_bytes_and_in_floats():
    paper = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert Ink().train(paper, ADDRESS).tolist() == pytest.approx([1, 0.8, 0])
    assert Ink().evaluate(torch.tensor([0.0, 0.25])).tolist() == [1, 0.75]


def test_characters_become_whole_numbers_for_the_embedding():
    x = torch.tensor([[0, 89]], dtype=torch.uint8)
    for ids in (Characters().train(x, ADDRESS), Characters().evaluate(x)):
        assert ids.dtype == torch.int64 and ids.tolist() == [[0, 89]]


def text(n, seed=0, length=80):
    """Outputs and targets over 90 characters, with all special ones, and padding at the end."""
    random = np.random.default_rng(seed)
    output, y = random.normal(size=(n, length, 90)), random.integers(1, 90, (n, length))
    y[0, :4], y[0, 4:6] = [1, 2, 88, 87], 89
    for row in range(1, n):
        y[row, length - 7 * row :] = 0
    # Some predictions are right, and some would be if they were allowed.
    for row, column in random.integers(0, (n, length), (n * length // 2, 2)):
        output[row, column, y[row, column]] = 9
    return torch.from_numpy(output), torch.from_numpy(y)


def naive_sequence_loss(output, y):
    """Mean over rows of: the sum over characters that are no padding, divided by 80."""
    losses = []
    for scores, targets in zip(output.tolist(), y.tolist(), strict=True):
        row = 0.0
        for score, target in zip(scores, targets, strict=True):
            if target != 0:
                row += log(sum(exp(s) for s in score)) - score[target]
        losses.append(row / 80)
    return sum(losses) / len(losses)


def naive_hits(output, y, skip, never):
    """Characters predicted right, and characters that count."""
    right = count = 0
    for scores, targets in zip(output.tolist(), y.tolist(), strict=True):
        for score, target in zip(scores, targets, strict=True):
            if target in skip:
                continue
            allowed = {i: s for i, s in enumerate(score) if i not in never}
            count += 1
            right += max(allowed, key=allowed.get) == target
    return right, count


METRICS = {  # name -> targets that do not count, characters that may not be predicted
    "clean": ({0, 1, 2}, {0, 1, 2, 89}),
    "fedjax": ({0, 88}, {0, 87, 88, 89}),
}


def test_the_loss_of_characters_is_divided_by_80_with_padding():
    output, y = text(3)
    assert float(sequence_loss(output, y)) == pytest.approx(naive_sequence_loss(output, y))
    y[1] = 0  # a row of padding only counts as a row
    assert float(sequence_loss(output, y)) == pytest.approx(naive_sequence_loss(output, y))


@pytest.mark.parametrize("name", METRICS)
def test_characters_are_counted_as_naively(name):
    output, y = text(4)
    before = output.clone()
    right, count = objective("characters", name).metrics["accuracy"](output, y)
    assert (int(right), int(count)) == naive_hits(output, y, *METRICS[name])
    assert 0 < right < count < (y != 0).sum()
    assert torch.equal(output, before)


def test_the_two_metrics_differ_where_they_should():
    output, y = text(4)
    counts = [int(objective("characters", n).metrics["accuracy"](output, y)[1]) for n in METRICS]
    marks, carriage_returns = ((y == 1) | (y == 2)).sum(), (y == 88).sum()
    assert counts[0] + marks == counts[1] + carriage_returns


@pytest.mark.parametrize("name", METRICS)
def test_evaluation_pools_characters_not_batches(name):
    output, y = text(7)
    loss, metrics = objective("characters", name)
    # A model that looks its outputs up: the example is the number of its row.
    module = nn.Embedding.from_pretrained(output.flatten(1).float(), freeze=False)
    x = np.arange(7)
    task = wima.make_task(
        nn.Sequential(module, nn.Unflatten(1, (80, 90))),
        FederatedData(x, y.numpy(), [0, 7]),
        (x, y.numpy()),
        loss=loss,
        metrics=metrics,
        eval_batch_size=3,  # batches of 3, 3 and 1 rows with different padding
    )
    got = task.evaluate(task.init(0))
    right, count = naive_hits(output.float(), y, *METRICS[name])
    assert got["accuracy"] == pytest.approx(right / count)
    assert got["loss"] == pytest.approx(naive_sequence_loss(output.float(), y), rel=1e-5)


def test_an_unknown_metric_gets_a_suggestion():
    with pytest.raises(UsageError, match=r"Unknown metric 'cleen'; did you mean 'clean'\?"):
        objective("characters", "cleen")

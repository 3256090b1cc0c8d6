"""Facts about how a data set is split among clients, and about those that come by name."""

from __future__ import annotations

import numpy as np
import pytest

from wima.core.errors import UsageError
from wima.data.federated import as_names
from wima.data.load import load
from wima.data.sets.digits import digits, load_digits, load_digits_split
from wima.data.split import assign, dirichlet, iid, one_class

CIFAR10 = np.repeat(np.arange(10), 5_000)  # 50,000 labels, 5,000 of each class, as CIFAR-10 has
UNEQUAL = np.repeat([3, 5, 8], [700, 200, 101])  # labels need be neither balanced nor 0, 1, 2, ...
ALPHAS = ["iid", 0, 1e-320, 0.05, 1.0, 1000.0]


def table(labels, clients, num_clients):
    """table[k, c] = how many examples of the c-th class client k holds."""
    _, class_of = np.unique(labels, return_inverse=True)
    counts = np.zeros((num_clients, class_of.max() + 1), np.int64)
    np.add.at(counts, (clients, class_of), 1)
    return counts


def classes_per_client(counts):
    return (counts > 0).sum(axis=1).mean()


def mean_entropy(counts):
    p = counts / counts.sum(axis=1, keepdims=True)
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1).mean()


def naive_dirichlet_entropy(per_component, draws=4_000):
    """Mean entropy of Dir(per_component) over ten classes, by NumPy's own sampler."""
    return mean_entropy(np.random.default_rng(0).dirichlet([per_component] * 10, draws))


def over_seeds(statistic, alpha, seeds=10):
    values = [statistic(table(CIFAR10, assign(CIFAR10, 100, alpha, s), 100)) for s in range(seeds)]
    return np.mean(values)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("labels", "num_clients"), [(CIFAR10, 100), (UNEQUAL, 7), (UNEQUAL, 1001)])
def test_every_example_gets_a_client_and_every_client_an_example(labels, num_clients, alpha):
    clients = assign(labels, num_clients, alpha, seed=1)
    assert clients.dtype == np.int64
    assert clients.shape == labels.shape
    assert np.array_equal(np.unique(clients), np.arange(num_clients))


@pytest.mark.parametrize("alpha", ["iid", 0.05, 1.0, 1000.0])
def test_clients_are_equal_in_size_up_to_one_example(alpha):
    sizes = np.bincount(assign(UNEQUAL, 7, alpha, seed=0))
    assert sizes.tolist() == [143] * 7  # 1001 / 7
    sizes = np.bincount(assign(UNEQUAL, 8, alpha, seed=0))
    assert sorted(sizes) == [125] * 7 + [126]  # 1001 = 8 * 125 + 1


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_same_seed_gives_the_same_split_and_another_seed_another(alpha):
    first = assign(CIFAR10, 100, alpha, seed=3)
    assert np.array_equal(first, assign(CIFAR10, 100, alpha, seed=3))
    assert not np.array_equal(first, assign(CIFAR10, 100, alpha, seed=4))


def test_alpha_chooses_the_kind_of_split():
    assert np.array_equal(assign(UNEQUAL, 7, "iid", 0), iid(UNEQUAL, 7, 0))
    assert np.array_equal(assign(UNEQUAL, 7, 0.0, 0), one_class(UNEQUAL, 7, 0))
    assert np.array_equal(assign(UNEQUAL, 7, None, 0), one_class(UNEQUAL, 7, 0))
    assert np.array_equal(assign(UNEQUAL, 7, 0.3, 0), dirichlet(UNEQUAL, 7, 0.3, 0))


def test_iid_clients_look_like_the_whole():
    counts = table(CIFAR10, iid(CIFAR10, 100, 0), 100)
    # 50 of each class expected; hypergeometric standard deviation sqrt(500 * .1 * .9) = 6.7
    assert np.abs(counts - 50).max() < 5 * 6.7


def test_alpha_zero_gives_one_class_per_client_and_ten_clients_per_class():
    counts = table(CIFAR10, assign(CIFAR10, 100, 0, seed=0), 100)
    assert ((counts > 0).sum(axis=1) == 1).all()
    assert ((counts > 0).sum(axis=0) == 10).all()
    assert (counts.max(axis=1) == 500).all()


def test_alpha_zero_gives_large_classes_more_clients():
    counts = table(UNEQUAL, one_class(UNEQUAL, 20, 0), 20)
    # Quotas 20 * (700, 200, 101) / 1001 = 13.99, 4.00, 2.02.
    assert (counts > 0).sum(axis=0).tolist() == [14, 4, 2]
    assert sorted(counts[:, 2][counts[:, 2] > 0]) == [50, 51]


def test_alpha_zero_gives_a_rare_class_a_client_of_its_own():
    labels = np.repeat([0, 1, 2], [1000, 1, 1])
    counts = table(labels, one_class(labels, 5, 0), 5)
    assert (counts > 0).sum(axis=0).tolist() == [3, 1, 1]


def test_alpha_zero_never_has_more_clients_than_a_class_has_examples():
    random = np.random.default_rng(0)
    for _ in range(200):
        labels = np.repeat(np.arange(6), random.integers(1, 12, 6))
        num_clients = int(random.integers(6, len(labels) + 1))
        counts = table(labels, one_class(labels, num_clients, 0), num_clients)
        assert ((counts > 0).sum(axis=1) == 1).all()


def test_alpha_zero_needs_a_client_per_class():
    with pytest.raises(UsageError, match="at least the number of classes, 10, got 9"):
        one_class(CIFAR10, 9, 0)


def test_dirichlet_matches_hsus_classes_and_entropy_at_small_alpha():
    # By this procedure 1.40 classes and entropy .115; in the published files 1.32 and .116.
    assert over_seeds(classes_per_client, 0.05) == pytest.approx(1.40, abs=0.2)
    assert over_seeds(mean_entropy, 0.05) == pytest.approx(0.115, abs=0.06)


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_dirichlet_alpha_is_the_total_concentration_not_that_of_one_class(alpha):
    entropy = over_seeds(mean_entropy, alpha)
    # Exhausted classes cost the last clients some: the published files are .05 and .07 lower.
    assert entropy == pytest.approx(naive_dirichlet_entropy(alpha / 10), abs=0.1)
    assert entropy < naive_dirichlet_entropy(alpha) - 0.2


def test_dirichlet_follows_the_class_frequencies():
    labels = np.repeat([0, 1], [9_000, 1_000])
    counts = table(labels, dirichlet(labels, 100, 1e6, 0), 100)
    # Shares .9 and .1 of 100 with standard deviation 100 * sqrt(.09 / 1e6) = .03; the last takes
    # what all the others' rounding left.
    assert np.abs(counts[:-1] - [90, 10]).max() <= 1


def test_dirichlet_rounds_instead_of_drawing():
    counts = table(CIFAR10, dirichlet(CIFAR10, 100, 1e9, 0), 100)
    # Drawing 500 labels would give a standard deviation of sqrt(500 * .1 * .9) = 6.7 around 50.
    assert np.abs(counts[:-1] - 50).max() <= 1


def test_dirichlet_gives_the_leftovers_to_the_last_clients():
    first, last = [], []
    for seed in range(10):
        counts = table(CIFAR10, dirichlet(CIFAR10, 100, 10.0, seed), 100)
        first.append(classes_per_client(counts[:10]))
        last.append(classes_per_client(counts[-3:]))
    assert np.mean(last) < np.mean(first) - 1


def test_dirichlet_takes_random_examples_of_a_class():
    clients = dirichlet(CIFAR10, 100, 1000.0, 0)
    inside = clients[:5_000]  # the examples of class 0 in their order
    assert np.abs(np.corrcoef(inside, np.arange(5_000))[0, 1]) < 5 / np.sqrt(5_000)


def test_names_of_clients_are_text_or_integers():
    assert as_names(np.array([b"b", b"a"])).tolist() == ["b", "a"]
    assert as_names(np.array(["b", "a"], dtype=object)).tolist() == ["b", "a"]
    assert as_names([30, 7, 30]).tolist() == [30, 7, 30]


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([], r"one per example, got shape \(0,\)"),
        ([["a"]], r"one per example, got shape \(1, 1\)"),
        (np.array(["a", None], dtype=object), r"got \[None\]"),
        ([0.5, 1.5], "text or integers, got float64"),
    ],
)
def test_what_is_no_list_of_names_is_refused(users, message):
    with pytest.raises(UsageError, match=message):
        as_names(users)


@pytest.mark.parametrize("alpha", [-1.0, float("nan"), float("inf"), "0.5", True])
def test_alpha_must_be_zero_or_positive(alpha):
    with pytest.raises(UsageError, match=f"^alpha must be a number .*, got {alpha!r}.$"):
        assign(CIFAR10, 100, alpha, 0)


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_dirichlet_needs_a_positive_alpha(alpha):
    with pytest.raises(UsageError, match=f"^alpha must be a positive number, got {alpha!r}.$"):
        dirichlet(CIFAR10, 100, alpha, 0)


@pytest.mark.parametrize("alpha", ["iid", None, 0, 0.5])
@pytest.mark.parametrize(
    ("labels", "num_clients", "seed", "message"),
    [
        (CIFAR10, 0, 0, "num_clients must be a positive integer, got 0"),
        (CIFAR10, -3, 0, "num_clients must be a positive integer, got -3"),
        (CIFAR10, 2.5, 0, "num_clients must be a positive integer, got 2.5"),
        (CIFAR10, True, 0, "num_clients must be a positive integer, got True"),
        (UNEQUAL, 1002, 0, "at most the number of examples, 1001, got 1002"),
        ([0.5, 1.0], 1, 0, "labels must be integers, one per example, got float64"),
        ([[0, 1]], 1, 0, r"labels must be integers, one per example, got int64 of shape \(1, 2\)"),
        (CIFAR10, 10, -1, "seed must be a non-negative integer, got -1"),
    ],
)
def test_every_split_refuses_what_cannot_be_split(labels, num_clients, alpha, seed, message):
    with pytest.raises(UsageError, match=message):
        assign(labels, num_clients, alpha, seed)


def test_digits_are_images_in_zero_to_one_with_every_class_in_both_parts():
    x, y, x_test, y_test = load_digits_split()
    assert len(x) + len(x_test) == 1797  # scikit-learn's documented number of images
    assert len(x_test) == -(-1797 // 5)
    assert x.shape[1:] == x_test.shape[1:] == (1, 8, 8)
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert (x.min(), x.max()) == (0, 1)
    share = np.bincount(y_test) / (np.bincount(y) + np.bincount(y_test))
    assert share == pytest.approx([0.2] * 10, abs=0.01)


def test_digits_have_one_class_per_client_unless_told_otherwise():
    bundle = digits()
    assert bundle.train.num_clients == 100
    assert bundle.classes == bundle.train.classes == 10
    assert all(len(np.unique(bundle.train.client(i)[1])) == 1 for i in range(100))
    mixed = digits(num_clients=20, alpha=None, seed=1)
    assert len(np.unique(mixed.train.client(0)[1])) > 5
    assert np.array_equal(bundle.x_test, mixed.x_test)


def test_an_unknown_data_set_gets_a_suggestion():
    with pytest.raises(UsageError, match=r"Unknown data set 'digit'; did you mean 'digits'\?"):
        load("digit", clients=10, alpha=0, seed=0)


def test_digits_take_clients_alpha_and_seed_by_name():
    bundle = load("digits", clients=12, alpha="iid", seed=0)
    assert bundle.train.num_clients == 12
    assert len(bundle.x_test) == len(bundle.y_test)
    assert load("digits").train.num_clients == 100


def test_the_stored_digits_are_scikit_learns_and_so_is_their_split():
    datasets = pytest.importorskip("sklearn.datasets")
    selection = pytest.importorskip("sklearn.model_selection")
    x, y = datasets.load_digits(return_X_y=True)
    images, labels = load_digits()
    assert np.array_equal(images, x) and np.array_equal(labels, y)
    assert (images.dtype, labels.dtype) == (x.dtype, y.dtype)
    x = (x / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    parts = selection.train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    for stored, split_there in zip(
        load_digits_split(), [parts[k] for k in (0, 2, 1, 3)], strict=True
    ):
        assert np.array_equal(stored, split_there) and stored.dtype == split_there.dtype

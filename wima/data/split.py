"""Which client holds which example: ways to split one labelled data set among clients.

Every function returns an array with the client of each example.  Every client gets at least one
example, and every example a client, except for `pachinko` and split files, where -1 stands for
none.  `alpha` says how similar clients are: None = each is a uniform sample of the whole, large =
nearly so, small = few classes per client, 0 = one class per client.
"""

from __future__ import annotations

import json
import os
import re
from math import isfinite
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from wima.core.errors import UsageError, check
from wima.core.randomness import rng
from wima.data.federated import Array, Ids, is_integer

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
PACHINKO = "pachinko"  # as a split
_IMAGE = re.compile(r"img_(\d+)_label_(\d+)\.\w+")


def assign(
    y: Array,
    clients: int,
    alpha: float | str | None,
    seed: int,
    split_by: str | None = None,
    groups: Array | None = None,
) -> Ids:
    """The client of each example: by alpha, by `pachinko`, or from a file.

    alpha: None is one class per client, "iid" a uniform sample.
    """
    if split_by == PACHINKO:
        if groups is None:
            raise UsageError("split=pachinko needs groups of classes, which only cifar100 has.")
        return pachinko(y, groups, clients, seed)
    if split_by is not None:
        return read_assignment(split_by, y)
    if isinstance(alpha, str):
        check(alpha == "iid", f"alpha must be a number or 'iid', got {alpha!r}.")
        return iid(y, clients, seed)
    return split(y, clients, 0.0 if alpha is None else alpha, seed)


def split(labels: npt.ArrayLike, num_clients: int, alpha: float | None, seed: int) -> Ids:
    """Split by `alpha`: None -> `iid`, 0 -> `one_class`, positive -> `dirichlet`."""
    if alpha is None:
        return iid(labels, num_clients, seed)
    check(
        _is_finite_number(alpha) and alpha >= 0,
        f"alpha must be 0 or a positive number, got {alpha!r}.",
    )
    if alpha == 0:
        return one_class(labels, num_clients, seed)
    return dirichlet(labels, num_clients, alpha, seed)


def iid(labels: npt.ArrayLike, num_clients: int, seed: int) -> Ids:
    """Examples are assigned at random; client sizes are as equal as possible."""
    n = len(_checked(labels, num_clients, seed))
    clients = np.repeat(np.arange(num_clients), _even(n, num_clients))
    return rng("split", seed).permutation(clients)


def one_class(labels: npt.ArrayLike, num_clients: int, seed: int) -> Ids:
    """Every client holds one class; large classes get more clients (Hsu et al. 2019, alpha = 0).

    Clients are allotted in proportion to the class counts, at least one per class; then a class's
    examples are distributed among its clients as evenly as possible.
    """
    class_of, counts = _classes(_checked(labels, num_clients, seed))
    check(
        num_clients >= len(counts),
        f"alpha = 0 gives each client one class, so num_clients must be at least the number of "
        f"classes, {len(counts)}, got {num_clients}.",
    )
    # One each, the rest by quotas minus one: the usual largest remainder if all quotas are > 1.
    quotas = num_clients * counts / counts.sum()
    extra = _largest_remainder(num_clients - len(counts), np.maximum(quotas - 1, 0))
    share = [_even(n_c, m_c) for n_c, m_c in zip(counts, 1 + extra, strict=True)]
    table = np.zeros((num_clients, len(counts)), np.int64)
    table[np.arange(num_clients), np.repeat(np.arange(len(counts)), 1 + extra)] = np.concatenate(
        share
    )
    return _deal(class_of, table, rng("split", seed))


def dirichlet(labels: npt.ArrayLike, num_clients: int, alpha: float, seed: int) -> Ids:
    """Each client's class shares are drawn from Dir(alpha * p), p = the class frequencies.

    Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data distribution".  alpha is
    the *total* concentration: with C balanced classes each component has alpha / C.  Clients are
    equal in size and filled one after another, so the last ones get what is left.
    """
    class_of, counts = _classes(_checked(labels, num_clients, seed))
    check(
        _is_finite_number(alpha) and alpha > 0, f"alpha must be a positive number, got {alpha!r}."
    )
    random = rng("split", seed)
    concentration = alpha * counts / counts.sum()
    left = counts.copy()
    table = np.empty((num_clients, len(counts)), np.int64)
    for k, size in enumerate(_even(counts.sum(), num_clients)):
        table[k] = _allocate(size, _dirichlet_draw(concentration, random), left)
        left -= table[k]
    return _deal(class_of, table, random)


def _dirichlet_draw(concentration: Floats, random: np.random.Generator) -> Floats:
    """One draw q ~ Dir(concentration), scaled so that its largest share is 1.

    In log space, because shares for a concentration near 0 underflow:
    log Gamma(a) = log Gamma(a + 1) + log(U) / a, and -log(U) is exponential.
    """
    with np.errstate(divide="ignore", over="ignore"):
        log_q = np.log(random.standard_gamma(concentration + 1))
        log_q -= random.standard_exponential(len(concentration)) / concentration
    if not np.isfinite(log_q.max()):  # an alpha so small that even the logarithms overflow
        log_q = np.full(len(concentration), -np.inf)
        log_q[random.integers(len(concentration))] = 0.0
    q: Floats = np.exp(log_q - log_q.max())
    return q


def _allocate(size: int, q: Floats, left: Ids) -> Ids:
    """`size` examples in proportion to q, with no more of a class than is left."""
    took = np.zeros_like(left)
    while (short := size - took.sum()) > 0:
        rest = left - took
        shares = np.where(rest > 0, q, 0.0)
        if shares.sum() == 0:  # only exhausted classes have a share
            shares = rest.astype(np.float64)
        took += np.minimum(_largest_remainder(short, shares), rest)
    return took


def _largest_remainder(total: int, weights: Floats) -> Ids:
    """Integers that sum to `total`, as close as possible to the proportions of `weights`."""
    if total == 0:
        return np.zeros(len(weights), np.int64)
    quotas = total * (weights / weights.sum())
    whole: Ids = np.floor(quotas).astype(np.int64)
    order = np.argsort(whole - quotas, kind="stable")
    whole[order[: total - whole.sum()]] += 1
    return whole


def _even(total: int, parts: int) -> Ids:
    """`total` as a sum of `parts` integers that differ by at most one, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)


def _deal(class_of: Ids, table: Ids, random: np.random.Generator) -> Ids:
    """The client of every example; client k gets table[k, c] random examples of class c."""
    clients = np.empty(len(class_of), np.int64)
    members = np.split(np.argsort(class_of, kind="stable"), np.cumsum(table.sum(0))[:-1])
    for c, examples in enumerate(members):
        clients[random.permutation(examples)] = np.repeat(np.arange(len(table)), table[:, c])
    return clients


def _classes(labels: npt.NDArray[Any]) -> tuple[Ids, Ids]:
    """Each example's class, numbered among the classes that occur, and the count of each class."""
    _, class_of, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return class_of.astype(np.int64), counts.astype(np.int64)


def _checked(labels: npt.ArrayLike, num_clients: int, seed: int) -> npt.NDArray[Any]:
    """The labels as an array; raises if they, the number of clients or the seed are invalid."""
    array = np.asarray(labels)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        got = f"{array.dtype} of shape {array.shape}"
        raise UsageError(f"labels must be integers, one per example, got {got}.")
    check(
        is_integer(num_clients) and num_clients > 0,
        f"num_clients must be a positive integer, got {num_clients!r}.",
    )
    check(
        num_clients <= len(array),
        f"num_clients must be at most the number of examples, {len(array)}, got {num_clients}.",
    )
    check(is_integer(seed) and seed >= 0, f"seed must be 0 or a positive integer, got {seed!r}.")
    return array


def _is_finite_number(number: object) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool) and isfinite(number)


def pachinko(
    labels: npt.ArrayLike,
    groups: npt.ArrayLike,
    num_clients: int = 500,
    seed: int = 0,
    *,
    coarse: float = 0.1,
    fine: float = 10.0,
) -> Ids:
    """The client of each example: a two-level Dirichlet process over groups of classes.

    Each client draws a distribution over groups, Dir(coarse, ..., coarse), and over the classes of
    each group, Dir(fine, ..., fine); then, for each of its examples, a group, a class of the group,
    and an unused example of the class.  Exhausted classes are removed from all distributions, and
    so are groups of which all classes are exhausted.  All clients have n // num_clients examples;
    -1 marks the remaining ones.  (Li and McCallum 2006; Reddi et al. 2021, appendix.)
    """
    y, group_of_example = np.asarray(labels), np.asarray(groups)
    check(len(y) == len(group_of_example), f"{len(y)} labels but {len(group_of_example)} groups.")
    check(1 <= num_clients <= len(y), f"clients must be in 1 ... {len(y)}, got {num_clients}.")
    random = rng("split", seed)
    classes = int(y.max()) + 1
    group_of = np.zeros(classes, np.int64)
    group_of[y] = group_of_example
    stock = [list(random.permutation(np.flatnonzero(y == c))) for c in range(classes)]
    clients = np.full(len(y), -1, np.int64)
    for client in range(num_clients):
        for example in _client(random, group_of, stock, len(y) // num_clients, coarse, fine):
            clients[example] = client
    return clients


def _client(
    random: np.random.Generator,
    group_of: Ids,
    stock: list[list[int]],
    size: int,
    coarse: float,
    fine: float,
) -> list[int]:
    """The unused examples that one client draws."""
    groups = int(group_of.max()) + 1
    members = [np.flatnonzero(group_of == g) for g in range(groups)]
    p_group = random.dirichlet(np.full(groups, coarse))
    p_class = np.zeros(len(group_of))
    for m in members:
        p_class[m] = random.dirichlet(np.full(len(m), fine))
    taken: list[int] = []
    while len(taken) < size:
        p = _shares(p_group, p_class, members, np.array([bool(examples) for examples in stock]))
        # All draws at once, as long as the distribution stays the same.
        for c in random.choice(len(p), size - len(taken), p=p):
            taken.append(stock[c].pop())
            if not stock[c]:
                break
    return taken


def _shares(p_group: Floats, p_class: Floats, members: list[Ids], left: Mask) -> Floats:
    """The probability of each class; 0 for exhausted ones."""
    shares: Floats = np.zeros(len(p_class))
    of_group = _struck(p_group, np.array([left[m].any() for m in members]))
    for g, m in enumerate(members):
        if of_group[g]:
            shares[m] = of_group[g] * _struck(p_class[m], left[m])
    shares /= shares.sum()
    return shares


def _struck(p: Floats, left: Mask) -> Floats:
    """The probabilities restricted to what is left; uniform if all of them are 0."""
    shares: Floats = np.where(left, p, 0.0)
    if not shares.sum() > 0:
        shares = left.astype(np.float64)
    shares /= shares.sum()
    return shares


def read_assignment(source: str, labels: Array) -> Ids:
    """The client of each example from a file, checked against the data set.

    split.npy              one integer per training example: its client, or -1 for none
    splits.npz:key         the same, as one of several arrays
    split.json             {"users": [...], "user_data": {user: {"x": ["img_7_label_3.png", ...]}}},
                           the published Dirichlet splits; or "x": [7, ...]
    """
    path, _, key = source.partition(".npz:")
    file = Path(os.path.expanduser(path + ".npz" if key else source))
    check(os.path.isfile(file), f"{file}: no such split file.")
    try:
        clients = _from_json(file, labels) if file.suffix == ".json" else _from_numpy(file, key)
    except UsageError:
        raise
    except Exception as error:  # numpy, zipfile and json can raise anything for damaged files
        raise UsageError(f"{file}: not a split file: {error!r}") from None
    check(
        clients.shape == labels.shape[:1],
        f"{file}: expected {len(labels):,} clients, one per example, got shape {clients.shape}.",
    )
    check(bool((clients >= 0).any()), f"{file}: no example belongs to a client.")
    return clients


def _from_numpy(file: Path, key: str) -> Ids:
    content = np.load(file, allow_pickle=False)
    if not isinstance(content, np.ndarray):  # an .npz file
        with content:
            known = ", ".join(content)
            check(key in content, f"{file}: name the array, as in {file}:KEY; it has {known:.200}.")
            content = content[key]
    if not isinstance(content, np.ndarray):
        raise ValueError("not an array")
    check(content.dtype.kind in "iu", f"{file}: clients must be integers, got {content.dtype}.")
    clients: Ids = content.astype(np.int64)
    return clients


def _from_json(file: Path, labels: Array) -> Ids:
    content: dict[str, Any] = json.loads(file.read_text("utf-8-sig"))
    clients = np.full(len(labels), -1, np.int64)
    for client, user in enumerate(content["users"]):
        for entry in content["user_data"][user]["x"]:
            index, label = _index(entry, file)
            fits = 0 <= index < len(labels) and (label is None or labels[index] == label)
            whose = f"{entry!r:.80} of user {user!r:.80}"
            check(fits, f"{file}: {whose} does not match the data set.")
            check(clients[index] < 0, f"{file}: {whose} is assigned more than once.")
            clients[index] = client
    return clients


def _index(entry: Any, file: Path) -> tuple[int, int | None]:
    """The position of an image, and its label if its name has one."""
    if isinstance(entry, int):
        return entry, None
    match = _IMAGE.fullmatch(str(entry).rsplit("/", 1)[-1])
    if match is None:
        raise UsageError(f"{file}: expected names like img_7_label_3.png, got {entry!r:.80}.")
    return int(match[1]), int(match[2])

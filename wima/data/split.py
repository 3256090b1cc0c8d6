"""Which client holds which example: ways to split one labelled data set among clients.

Every function returns an array with the client of each example.  Every client gets at least one
example, and every example a client, except for `pachinko` and split files, where -1 stands for
none.  `alpha` says how similar clients are: "iid" = each is a uniform sample of the whole, large =
nearly so, small = few classes per client, 0 = one class per client.
"""

import json
import os
import re
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from wima.core.errors import UsageError, check, check_count, check_range, check_rate
from wima.core.randomness import rng
from wima.data.federated import Array, Ids

Floats: TypeAlias = npt.NDArray[np.float64]
Mask: TypeAlias = npt.NDArray[np.bool_]
PACHINKO = "pachinko"  # as a split
LEAST_ALPHA = 1e-290  # for less, even logarithms of shares overflow
_IMAGE = re.compile(r"img_(\d+)_label_(\d+)\.\w+")


def assign(
    y: npt.ArrayLike,
    clients: int,
    alpha: float | str | None,
    seed: int,
    split_by: str | None = None,
    groups: Array | None = None,
) -> Ids:
    """The client of each example: by alpha, by `pachinko`, or from a file.

    alpha: None and 0 are one class per client, "iid" is a uniform sample, else Dirichlet.
    """
    if split_by == PACHINKO:
        if groups is None:
            raise UsageError("split=pachinko needs groups of classes, which only cifar100 has.")
        return pachinko(y, groups, clients, seed)
    if split_by is not None:
        return read_assignment(split_by, np.asarray(y))
    if isinstance(alpha, str):
        check(alpha == "iid", f"alpha must be a number or 'iid', got {alpha!r}.")
        return iid(y, clients, seed)
    if alpha is None:
        return one_class(y, clients, seed)
    check_range("alpha", alpha, least=0)
    return dirichlet(y, clients, alpha, seed) if alpha > 0 else one_class(y, clients, seed)


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
    held = np.repeat(np.arange(len(counts)), 1 + extra)  # the class of each client
    table[np.arange(num_clients), held] = np.concatenate(share)
    return _deal(class_of, table, rng("split", seed))


def dirichlet(labels: npt.ArrayLike, num_clients: int, alpha: float, seed: int) -> Ids:
    """Each client's class shares are drawn from Dir(alpha * p), p = the class frequencies.

    Hsu, Qi and Brown 2019, "Measuring the effects of non-identical data distribution".  alpha is
    the *total* concentration: with C balanced classes each component has alpha / C.  Clients are
    equal in size and filled one after another, so the last ones get what is left.
    """
    class_of, counts = _classes(_checked(labels, num_clients, seed))
    check_rate("alpha", alpha)
    random = rng("split", seed)
    concentration = max(alpha, LEAST_ALPHA) * counts / counts.sum()
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
    log_q = np.log(random.standard_gamma(concentration + 1))
    log_q -= random.standard_exponential(len(concentration)) / concentration
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
    got = f"{array.dtype} of shape {array.shape}"
    fits = array.ndim == 1 and array.dtype.kind in "iu"
    check(fits, f"labels must be integers, one per example, got {got}.")
    check_count("num_clients", num_clients)
    check(
        num_clients <= len(array),
        f"num_clients must be at most the number of examples, {len(array)}, got {num_clients}.",
    )
    check_count("seed", seed, least=0)
    return array


COARSE, FINE = 0.1, 10.0  # concentrations of `pachinko`


def pachinko(
    labels: npt.ArrayLike, groups: npt.ArrayLike, num_clients: int = 500, seed: int = 0
) -> Ids:
    """The client of each example: a two-level Dirichlet process over groups of classes.

    Each client draws a distribution over groups, Dir(0.1, ..., 0.1), and over the classes of each
    group, Dir(10, ..., 10); then, for each of its examples, a group, a class of the group, and an
    unused example of the class.  Exhausted classes are removed from all distributions, and so are
    groups of which all classes are exhausted.  All clients have n // num_clients examples; -1 marks
    the remaining ones.  (Li and McCallum 2006; Reddi et al. 2021, appendix.)
    """
    y, group_of_example = np.asarray(labels), np.asarray(groups)
    check(len(y) == len(group_of_example), f"{len(y)} labels but {len(group_of_example)} groups.")
    check(1 <= num_clients <= len(y), f"clients must be in 1 ... {len(y)}, got {num_clients}.")
    random = rng("split", seed)
    group_of = np.zeros(int(y.max()) + 1, np.int64)
    group_of[y] = group_of_example
    members = [np.flatnonzero(group_of == g) for g in range(int(group_of.max()) + 1)]
    stock = [list(random.permutation(np.flatnonzero(y == c))) for c in range(len(group_of))]
    clients = np.full(len(y), -1, np.int64)
    for client in range(num_clients):
        p_group, p_class = random.dirichlet(np.full(len(members), COARSE)), np.zeros(len(group_of))
        for m in members:
            p_class[m] = random.dirichlet(np.full(len(m), FINE))
        short = len(y) // num_clients
        while short:
            p = _shares(p_group, p_class, members, np.array([bool(unused) for unused in stock]))
            # All draws at once, as long as the distribution stays the same.
            for c in random.choice(len(p), short, p=p):
                clients[stock[c].pop()] = client
                short -= 1
                if not stock[c]:
                    break
    return clients


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
    check(content.dtype.kind in "iu", f"{file}: clients must be integers, got {content.dtype}.")
    return content.astype(np.int64)  # type: ignore[no-any-return]


def _from_json(file: Path, labels: Array) -> Ids:
    content: dict[str, Any] = json.loads(file.read_text("utf-8-sig"))
    clients = np.full(len(labels), -1, np.int64)
    for client, user in enumerate(content["users"]):
        for entry in content["user_data"][user]["x"]:
            match = _IMAGE.fullmatch(str(entry).rpartition("/")[2])
            if match is None and not isinstance(entry, int):
                raise UsageError(
                    f"{file}: expected names like img_7_label_3.png, got {entry!r:.80}."
                )
            index = int(match[1]) if match else entry
            fits = 0 <= index < len(labels) and (not match or labels[index] == int(match[2]))
            whose = f"{entry!r:.80} of user {user!r:.80}"
            check(fits, f"{file}: {whose} does not match the data set.")
            check(clients[index] < 0, f"{file}: {whose} is assigned more than once.")
            clients[index] = client
    return clients

"""Which client holds which example: ways to split one labelled data set among clients.

Every function returns an array with the client of each example.  Every client gets at least one
example, and every example a client.  `alpha` says how similar clients are: None = each is a uniform
sample of the whole, large = nearly so, small = few classes per client, 0 = one class per client.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from wima.core.errors import UsageError, check
from wima.core.randomness import rng

Ids: TypeAlias = npt.NDArray[np.int64]
LONGEST_NAME = 256
Floats: TypeAlias = npt.NDArray[np.float64]


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


def as_names(clients: npt.ArrayLike) -> npt.NDArray[Any]:
    """One name per example, as an array of integers or of text."""
    if isinstance(clients, list | tuple):
        check_names(name for name in clients if isinstance(name, str))
    try:
        names = np.asarray(clients)
    except ValueError as error:  # lists of unequal length
        raise UsageError(f"client names must be a list: {error}") from None
    check(
        names.ndim == 1 and names.size > 0,
        f"client names must be a non-empty list, one per example, got shape {names.shape}.",
    )
    if names.dtype == object:  # as pandas stores text; a missing name is None or NaN there
        odd = [name for name in names if not isinstance(name, str)]
        check(not odd, f"client names must all be text or all be integers, got {odd[:1]}.")
        names = names.astype(str)
    if names.dtype.kind == "S":  # as HDF5 stores text
        names = np.char.decode(names, "utf-8", "replace")
    check(
        names.dtype.kind in "iuUT",
        f"client names must be text or integers, got {names.dtype}.",
    )
    return names


def check_names(names: Iterable[str]) -> None:
    """Raise `UsageError` for long names: in an array, each takes the space of the longest."""
    longest = max(names, key=len, default="")
    check(
        len(longest) <= LONGEST_NAME,
        f"client names must have at most {LONGEST_NAME} characters, got one of {len(longest):,} "
        f"that starts with {longest[:20]!r}.",
    )


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


def is_integer(number: object) -> TypeGuard[int]:
    """Whether it is a Python or NumPy integer, not a bool."""
    return isinstance(number, Integral) and not isinstance(number, bool)


def _is_finite_number(number: object) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool) and isfinite(number)

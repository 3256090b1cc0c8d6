"""Load a data set by name, split among clients and ready for training."""

import inspect
from collections.abc import Callable
from typing import Any

from wima.core.errors import check, unknown
from wima.data.cache import DataSet, fetch_and_prepare, open_ready, ready
from wima.data.federated import Bundle, FederatedData
from wima.data.files import load_files
from wima.data.sets import check_name, is_folder
from wima.data.sets.cifar import CIFAR10, CIFAR100, PAM
from wima.data.sets.digits import CLIENTS, digits
from wima.data.sets.femnist import FEMNIST
from wima.data.sets.landmarks import load_landmarks
from wima.data.sets.shakespeare import SHAKESPEARE
from wima.data.split import PACHINKO, assign

PUBLIC = {d.name: d for d in (CIFAR10, CIFAR100, PAM, FEMNIST, SHAKESPEARE)}
OWN_CLIENTS = ("femnist", "shakespeare", "landmarks", "cifar100-pam")
PACHINKO_CLIENTS = 500  # as TFF's


def load(
    name: str,
    *,
    clients: int | None = None,
    alpha: float | str | None = None,
    seed: int = 0,
    split: str | None = None,
    **options: Any,
) -> Bundle:
    """A data set by name, or from an .npz file or a folder of .npy files, split among clients.

    alpha: Dirichlet concentration; 0: one class per client; "iid"; None: the data set's own
    clients if it defines them, otherwise one class per client.
    split: a file with the client of each example, or "pachinko" for CIFAR-100.
    options: options of the data set, for example augment="batch" for CIFAR.
    """
    check_name(name)
    check(alpha is None or split is None, "Give alpha or split, not both: either sets the clients.")
    is_own = name.endswith(".npz") or is_folder(name)
    if is_own or name in OWN_CLIENTS:
        check(
            alpha is None and split is None,
            f"{name} defines its own clients; alpha and split cannot be set. If a preset sets "
            "alpha, add alpha=none.",
        )
        check(clients is None, f"{name} defines its own clients; their number cannot be set.")
    if is_own:
        return load_files(name)
    if name == "landmarks":
        _check_options(name, options, load_landmarks)
        return load_landmarks(**options)
    if clients is None:
        clients = PACHINKO_CLIENTS if split == PACHINKO else CLIENTS
    if name == "digits":
        _check_options(name, options, lambda: None)
        return digits(clients, 0.0 if alpha is None else alpha, seed, split)
    dataset = PUBLIC[name]
    _check_options(name, options, dataset.transform)
    transform = dataset.transform(**options)
    if not ready(name).is_dir():
        fetch_and_prepare(dataset)
    arrays, meta = open_ready(name)
    x, y, classes = arrays["x"], arrays["y"], int(meta["classes"])
    if "offsets" in arrays:
        train = FederatedData(x, y, arrays["offsets"], meta["names"], classes)
    else:
        owner = assign(y, clients, alpha, seed, split, arrays.get("groups"))
        train = FederatedData.from_arrays(x, y, owner, classes=classes)
    x_test, y_test, owners = arrays["x_test"], arrays["y_test"], arrays.get("test_clients")
    return Bundle(train, x_test, y_test, classes, transform, dataset.kind, owners)


def public(name: str) -> DataSet:
    """The public data set of that name."""
    if name not in PUBLIC:
        raise unknown("data set with files", name, PUBLIC)
    return PUBLIC[name]


def _check_options(name: str, options: dict[str, Any], function: Callable[..., Any]) -> None:
    """Raise unless the options are parameters of the function that have defaults."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.default is not inspect.Parameter.empty]
    for option in options:
        if option not in known:
            raise unknown(f"option of data set {name}", option, known or ["(it has none)"])

"""The public data sets: what there is, and one module for each that reads the published files."""

import os

from wima.core.errors import unknown

SUMMARIES = {
    "digits": "1,797 digits of 8x8 pixels that come with this package, 20 % held out",
    "cifar10": "60,000 colour images of 32x32 pixels, 10 classes; 10,000 for testing",
    "cifar100": (
        "60,000 colour images of 32x32 pixels, 100 classes in 20 groups; 10,000 for testing"
    ),
    "cifar100-pam": "CIFAR-100 on 500 clients with 100 images each, as published by TFF",
    "femnist": "characters of 28x28 pixels, 62 classes; the clients are their 3,400 writers",
    "shakespeare": (
        "rows of 80 characters, to predict the next ones; the clients are 715 speaking roles"
    ),
    "landmarks": "GLDv2's Landmarks-User-160k: photographs by 1,262 photographers, 2,028 classes",
}
# Where a name had another meaning in version 0.1.0.
REMARKS = {
    "cifar100-pam": (
        "data=cifar100-pam is the Pachinko allocation that TFF published. Version 0.1.0, if it did "
        "not find TFF's file, used one of its own under this name: data=cifar100 split=pachinko."
    )
}


def is_folder(name: str) -> bool:
    """Whether a data set is a folder of a user's own .npy files."""
    return name not in SUMMARIES and os.path.isdir(os.path.expanduser(name))


def check_name(name: str) -> None:
    """Raise `UsageError` unless it names a data set, an .npz file or a folder."""
    if name not in SUMMARIES and not name.endswith(".npz") and not is_folder(name):
        raise unknown("data set", name, SUMMARIES)

"""Shakespeare: predict the next character; the clients are 715 speaking roles.

The text is out of copyright; editions have their own terms.
"""

from pathlib import Path

import numpy as np

from wima.data.cache import DataSet, RawData
from wima.data.federated import Array
from wima.data.sets import fedjax
from wima.data.transform import Characters

FILES = ("shakespeare_train.sqlite", "shakespeare_test.sqlite")
LENGTH = 80
PAD, BOS, EOS, FIRST = 0, 1, 2, 3
CHARACTERS = (
    "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"
)
NAMES = {" ": "space", "\n": "newline", "\r": "return"}  # as tables show them
OOV = FIRST + len(CHARACTERS)
VOCABULARY = OOV + 1  # 90
_IDS = np.full(256, OOV, np.uint8)
_IDS[[ord(character) for character in CHARACTERS]] = np.arange(FIRST, OOV)


def rows(snippets: list[bytes]) -> tuple[Array, Array]:
    """A client's inputs and targets (n, 80): snippets concatenated, targets one character ahead."""
    pieces = [np.concatenate([[BOS], _IDS[np.frombuffer(s, np.uint8)], [EOS]]) for s in snippets]
    text = np.concatenate(pieces).astype(np.uint8)
    n = -(-(len(text) - 1) // LENGTH)
    both = np.full((2, n * LENGTH), PAD, np.uint8)
    both[0, : len(text) - 1], both[1, : len(text) - 1] = text[:-1], text[1:]
    x, y = both.reshape(2, n, LENGTH)
    return x, y


def read_shakespeare(source: Path) -> RawData:
    """Read FedJAX's two SQLite files."""
    fedjax.check_folder(source, FILES)
    parts = []
    for path in (source / name for name in FILES):
        roles = ((name, *rows(snippets)) for name, snippets in fedjax.clients(path, "snippets"))
        parts.append(fedjax.joined(path, roles, "roles"))
    (x, y, roles_of), (x_test, y_test, tested) = parts
    return RawData(x, y, x_test, y_test, VOCABULARY, roles_of, test_clients=tested)


SHAKESPEARE = DataSet(
    "shakespeare",
    fedjax.remotes("shakespeare", FILES),
    read_shakespeare,
    Characters,
    kind="characters",
    expects="a folder with FedJAX's shakespeare_{train,test}.sqlite",
    labels=("padding", "begin", "end", *(NAMES.get(c, c) for c in CHARACTERS), "other"),
    clients=715,
)

"""Randomness has an address: a draw depends on what it is for, never on earlier draws.

`rng("cohort", seed, t)` is the same stream in every engine, process and resumed run.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# The stream's number leads the address, because NumPy gives [1, 2] and [1, 2, 0] the same stream.
STREAMS = {
    "init": 1,
    "split": 2,
    "cohort": 3,
    "batches": 4,
    "layers": 5,
    "check": 6,
    "augment": 7,
    "faults": 8,
    "flower": 9,
    "privacy": 10,
    "tune": 11,
    "clients": 12,
}


def rng(stream: str, *address: int) -> "np.random.Generator":
    """The generator at this address; equal addresses give equal draws."""
    import numpy as np  # imported here: it takes 0.1 s, and settings do not need it

    return np.random.default_rng([STREAMS[stream], *address])


def torch_seed(stream: str, *address: int) -> int:
    """A 63-bit seed for torch's own generator at this address."""
    import numpy as np

    state = np.random.SeedSequence([STREAMS[stream], *address]).generate_state(2, np.uint32)
    return (int(state[0]) << 31) | (int(state[1]) >> 1)

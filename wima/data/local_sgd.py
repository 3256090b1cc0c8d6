"""How clients train; used by settings, so importing it must not load numpy or torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Literal

from wima.core.checks import check_count, check_one_of, check_range

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """How clients train, whatever the algorithm.

    batch_size "full" means all of a client's examples.  A visit has ceil(epochs * N_i / batch_size)
    steps, or `steps` if given.  last_batch "fill" completes the last batch from a new shuffle, so
    that all batches have the same size; "short" leaves it short, as PyTorch's loaders do.

    Examples:
        >>> import wima
        >>> sgd = wima.LocalSGD(batch_size=4, epochs=2)
        >>> sgd.count(10)  # steps of a visit to a client with 10 examples: ceil(2 * 10 / 4)
        5
    """

    batch_size: int | Literal["full"] = 10
    epochs: int = 1
    steps: int | None = None
    last_batch: Literal["fill", "short"] = "fill"
    weight_decay: float = 0.0
    momentum: float = 0.0
    clip: float | None = None  # largest norm of a step's direction

    def __post_init__(self) -> None:
        if self.batch_size != "full":
            check_count("batch_size", self.batch_size)
        check_count("epochs", self.epochs)
        if self.steps is not None:
            check_count("steps", self.steps)
        check_one_of("last_batch", self.last_batch, ("fill", "short"))
        check_range("weight_decay", self.weight_decay, least=0)
        check_range("client momentum", self.momentum, least=0, below=1)
        if self.clip is not None:
            check_range("clip", self.clip, above=0)

    def whole_steps(self, n: int) -> int | None:
        """The number of steps of a visit, if each of them sees all n examples."""
        full = self.batch_size in ("full", n)
        if self.batch_size != "full" and self.last_batch == "short":
            full = self.batch_size >= n
        return (self.steps or self.epochs) if full else None

    def size(self, n: int) -> int:
        """The mini-batch size of a client with n examples."""
        return n if self.batch_size == "full" else self.batch_size

    def count(self, n: int) -> int:
        """The number of steps of a visit to a client with n examples."""
        size = self.size(n)
        if self.last_batch == "short":
            return self.steps or self.epochs * ceil(n / size)
        return self.steps or ceil(self.epochs * n / size)

    def plan(self, n: int, random: np.random.Generator) -> list[npt.NDArray[np.int64]]:
        """The indices of the examples in each step: successive permutations, cut into batches."""
        import numpy as np

        size, steps = self.size(n), self.count(n)
        if self.last_batch == "short":
            return self._plan_short(n, size, steps, random)
        passes = [random.permutation(n) for _ in range(ceil(steps * size / n))]
        return list(np.concatenate(passes)[: steps * size].reshape(steps, size))

    def _plan_short(
        self, n: int, size: int, steps: int, random: np.random.Generator
    ) -> list[npt.NDArray[np.int64]]:
        plan: list[npt.NDArray[np.int64]] = []
        while len(plan) < steps:
            order = random.permutation(n)
            plan += [order[i : i + size] for i in range(0, n, size)]
        return plan[:steps]

"""The past values of named tensors: the last ones in a ring, or sums for a window chosen by them.

Both kinds have `state` and `load_state` for state dicts, and `save` and `load` for folders.
"""

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wima.averaging.wima import DEFAULT_K, AutoWindow
from wima.core.errors import UsageError, check, check_count
from wima.core.vector import Layout, Vector
from wima.storage.ring import Ring
from wima.storage.segments import Segments
from wima.storage.states import decode, encode

AUTO = "auto"
MEANT = {None: "the past models of a fixed window", AUTO: "the sums of window='auto'"}


class PastValues:
    """What both kinds know of the tensors: their names, dtypes and shapes."""

    kind: str | None = None  # in saved states of sums; those of a ring have none

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.names = list(tensors)
        self._specs = {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
        self.count = 0  # pushes so far

    def _check_same(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise if the dtype or shape of a tensor has changed."""
        for name, (dtype, shape) in self._specs.items():
            now = tensors[name]
            if now.dtype != dtype or now.shape != shape:
                raise UsageError(
                    f"{name} was {_name(dtype)} {shape} when averaging started, and is now "
                    f"{_name(now.dtype)} {tuple(now.shape)}."
                )

    def _header(self) -> dict[str, Any]:
        """What a saved state says besides the values."""
        specs = self._specs.items()
        tensors = {name: f"{_name(dtype)} {list(shape)}" for name, (dtype, shape) in specs}
        return {"count": self.count, "tensors": tensors}

    def _check_fits(self, saved: Mapping[str, Any]) -> None:
        """Raise unless the saved values are of the same kind and for the same tensors."""
        here, there = MEANT[self.kind], MEANT[saved.get("kind")]
        check(here == there, f"The saved state has {there}; expected {here}.")
        ours, theirs = self._header()["tensors"], dict(saved["tensors"])
        for name in {**ours, **theirs}:
            here, there = (about.get(name, "not averaged") for about in (ours, theirs))
            check(here == there, f"{name} is {here}, but was {there} when it was saved.")


class TensorRing(PastValues):
    """The last `length` values of a set of named tensors.

    Tensors of one dtype are concatenated into the vectors of one `Ring`.  folder: keep them in a
    memory-mapped file there.  dtype: store tensors of larger dtypes in this one.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        length: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        folder: Path | None = None,
    ) -> None:
        super().__init__(tensors)
        self.length = length
        self._layouts = {
            kind: Layout.of({n: t for n, t in tensors.items() if t.dtype == kind})
            for kind in dict.fromkeys(t.dtype for t in tensors.values())
        }
        self._rings: dict[torch.dtype, Ring] = {}
        for kind, layout in self._layouts.items():
            kept = dtype if dtype and dtype.itemsize < kind.itemsize else kind
            like = torch.empty(layout.size, dtype=kind, device=device)
            self._rings[kind] = Ring(length, like, folder=folder, dtype=kept)
        self._stages: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @property
    def held(self) -> int:
        """How many values are stored."""
        return min(self.count, self.length)

    @torch.no_grad()
    def push(self, tensors: Mapping[str, Tensor]) -> None:
        """Store copies of the tensors in place of the oldest values."""
        self._check_same(tensors)
        for kind, layout in self._layouts.items():
            row, device = self._rings[kind].place(), tensors[next(iter(layout.slices))].device
            place = row
            if device != row.device:  # a vector there makes a single transfer of all tensors
                if (kind, device) not in self._stages:
                    self._stages[kind, device] = torch.empty_like(row, device=device)
                place = self._stages[kind, device]
            for name in layout.slices:
                layout.view(place, name).copy_(tensors[name])
            if place is not row:
                row.copy_(place)
        for ring in self._rings.values():
            ring.advance()
        self.count += 1

    @torch.no_grad()
    def mean(self, window: int | None = None) -> dict[str, Tensor]:
        """The mean of the last values, in the tensors' own dtypes; empty without values."""
        n = self.length if window is None else window
        check_count("window", n)
        check(n <= self.length, f"window={n}: only the last {self.length} models are kept.")
        means: dict[str, Tensor] = {}
        for kind, layout in self._layouts.items() if self.count else ():
            means |= layout.unflatten(self._rings[kind].mean(min(n, self.held)))
        return {name: means[name] for name in self.names if means}

    def state(self) -> dict[str, Any]:
        """The state as tensors, numbers and strings; the tensors are not copies."""
        rows = {_name(kind): ring.rows[: self.held] for kind, ring in self._rings.items()}
        return {**self._header(), "length": self.length, "rows": rows}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the ring from its state."""
        self._check_fits(state)
        count, length = state["count"], state["length"]
        first = count - min(count, self.length)
        for kind, ring in self._rings.items():
            ring.restart(first)
            for number in range(first, count):
                ring.push(state["rows"][_name(kind)][number % length])
        self.count = count

    def save(self, store: Segments) -> dict[str, Any]:
        """Write what the store does not have yet; returns the JSON that `load` takes."""
        segments = {_name(kind): ring.save(store, "ring") for kind, ring in self._rings.items()}
        sums = {name: store.sums[name] for names in segments.values() for name in names}
        header = {**self._header(), "length": self.length}
        return {**header, "segments": segments, "sums": sums}

    def load(self, store: Segments, saved: Mapping[str, Any]) -> None:
        """Restore the saved ring from intact segments."""
        self._check_fits(saved)
        for kind, ring in self._rings.items():
            ring.load(store, saved["segments"][_name(kind)], saved["count"])
        self.count = saved["count"]

    def _check_fits(self, saved: Mapping[str, Any]) -> None:
        super()._check_fits(saved)
        count, length = saved["count"], saved["length"]
        check(
            self.length <= length or count <= length,
            f"The window is {self.length}, but only the last {length} models were saved.",
        )


class TensorSums(PastValues):
    """The state of `WIMA("auto")` for a set of named tensors: a few float64 sums.

    Tensors of all dtypes are concatenated into one vector.
    """

    kind = AUTO

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        super().__init__(tensors)
        self._layout = Layout.of(tensors)
        self._widest = reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values()))
        self._device = torch.device(device)
        start = torch.zeros(self._layout.size, dtype=torch.float64, device=device)
        self._rule, self._past = AutoWindow(DEFAULT_K), Ring(0, start)
        self._state = self._rule.init(start)
        self._scored = False  # whether this object has seen a gradient

    @property
    def held(self) -> int:
        """How many values are in the mean."""
        return self._rule.used(self._state) if self.count else 0

    @torch.no_grad()
    def use_gradients(self, tensors: Mapping[str, Tensor]) -> None:
        """Choose the window by the tensors' gradients, which were taken at the newest value.

        Missing gradients are an error only at first: later steps may have none.
        """
        if self.count == 0:
            return
        leaves = {name: tensor for name, tensor in tensors.items() if tensor.is_leaf}
        gradients = {n: tensor.grad for n, tensor in leaves.items() if tensor.grad is not None}
        gradient = self._flat(gradients)
        check(
            self._scored or bool(gradient.any()),
            "window='auto' chooses W by gradients, and there are none: call update() after "
            "optimizer.step() and before zero_grad().",
        )
        if gradients and bool(gradient.isfinite().all()):  # no if a scaler skipped the step
            self._state = self._rule.use_gradient(self._state, gradient)
            self._scored = True

    @torch.no_grad()
    def push(self, tensors: Mapping[str, Tensor]) -> None:
        """Add the tensors to the sums."""
        self._check_same(tensors)
        self._state = self._rule.update(self._state, self._flat(tensors), self._past)
        self.count += 1

    def _flat(self, tensors: Mapping[str, Tensor]) -> Vector:
        """The tensors as one vector, 0 where one is missing; one transfer between devices."""
        device = next((tensor.device for tensor in tensors.values()), self._device)
        flat = torch.zeros(self._layout.size, dtype=self._widest, device=device)
        for name, tensor in tensors.items():
            self._layout.view(flat, name).copy_(tensor.to_dense())
        return flat.to(self._device)

    @torch.no_grad()
    def mean(self, window: int | None = None) -> dict[str, Tensor]:
        """The mean over the chosen window, in the tensors' own dtypes; empty without values."""
        check(
            window is None,
            f"window={window}: window='auto' keeps sums and has no other window; omit it.",
        )
        if self.count == 0:
            return {}
        means = self._layout.unflatten(self._rule.value(self._state))
        return {name: means[name].to(dtype) for name, (dtype, _) in self._specs.items()}

    def state(self) -> dict[str, Any]:
        """The state as tensors, numbers and strings; the tensors are not copies."""
        vectors: dict[str, Tensor] = {}
        tree = encode(self._state, AUTO, vectors, {})
        return {"kind": self.kind, **self._header(), "state": tree, "rows": vectors}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sums from their state."""
        self._check_fits(state)

        def tensor(name: str) -> Tensor:
            values: Tensor = state["rows"][name].clone()  # scores are on the CPU in any case
            return values.to(self._device) if len(values) == self._layout.size else values

        self._state = decode(state["state"], self._state, tensor, {})
        self.count = state["count"]

    def save(self, store: Segments) -> dict[str, Any]:
        """Write all sums; returns the JSON that `load` takes."""
        state = self.state()
        segments = {name: store.write(AUTO, {name: v}) for name, v in state.pop("rows").items()}
        sums = {name: store.sums[name] for name in segments.values()}
        return {**state, "segments": segments, "sums": sums}

    def load(self, store: Segments, saved: Mapping[str, Any]) -> None:
        """Restore the saved sums from intact segments."""
        self._check_fits(saved)
        rows = {name: store.read(segment, name) for name, segment in saved["segments"].items()}
        self.load_state({**saved, "rows": rows})


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

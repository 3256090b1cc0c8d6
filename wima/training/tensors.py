"""The last values of named tensors, of any shapes and floating-point dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wima.core.checks import check_count
from wima.core.errors import UsageError, check
from wima.core.vector import Layout
from wima.storage.ring import Ring
from wima.storage.segments import Segments


class TensorRing:
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
        self.length, self.names = length, list(tensors)
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
        self.count = 0  # pushes so far

    @property
    def held(self) -> int:
        """How many values are stored."""
        return min(self.count, self.length)

    @torch.no_grad()
    def push(self, tensors: Mapping[str, Tensor]) -> None:
        """Store copies of the tensors in place of the oldest values."""
        for kind, layout in self._layouts.items():
            for name, shape in layout.shapes.items():
                check_same(name, kind, shape, tensors[name])
        for kind, layout in self._layouts.items():
            self._write(kind, layout, tensors)
        for ring in self._rings.values():
            ring.advance()
        self.count += 1

    def _write(self, kind: torch.dtype, layout: Layout, tensors: Mapping[str, Tensor]) -> None:
        row, device = self._rings[kind].place(), tensors[next(iter(layout.slices))].device
        place = row if device == row.device else self._stage(kind, row, device)
        for name in layout.slices:
            layout.view(place, name).copy_(tensors[name])
        if place is not row:
            row.copy_(place)

    def _stage(self, kind: torch.dtype, row: Tensor, device: torch.device) -> Tensor:
        """A vector on the tensors' device, so that there is a single transfer for all tensors."""
        if (kind, device) not in self._stages:
            self._stages[kind, device] = torch.empty_like(row, device=device)
        return self._stages[kind, device]

    @torch.no_grad()
    def mean(self, window: int | None = None) -> dict[str, Tensor]:
        """The mean of the last values, in the tensors' own dtypes; empty without values."""
        n = self.length if window is None else window
        check_count("window", n)
        check(n <= self.length, f"window={n}: only the last {self.length} models are kept.")
        found: dict[str, Tensor] = {}
        for kind, layout in self._layouts.items() if self.count else ():
            found |= layout.unflatten(self._rings[kind].mean(min(n, self.held)))
        return {name: found[name] for name in self.names if found}

    def state(self) -> dict[str, Any]:
        """The state as tensors, numbers and strings; the tensors are not copies."""
        rows = {_name(kind): ring.rows[: self.held] for kind, ring in self._rings.items()}
        return {**self._about(), "rows": rows}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the ring from its state."""
        self._check_fits(state)
        count, length = state["count"], state["length"]
        self.restart(count - min(count, self.length))
        for kind, ring in self._rings.items():
            for number in range(self.count, count):
                ring.push(state["rows"][_name(kind)][number % length])
        self.count = count

    def restart(self, count: int) -> None:
        """Drop all values; the next one is number `count`."""
        self.count = count
        for ring in self._rings.values():
            ring.restart(count)

    def save(self, store: Segments) -> dict[str, Any]:
        """Write what the store does not have yet; returns the JSON that `load` takes."""
        segments = {_name(kind): ring.save(store, "ring") for kind, ring in self._rings.items()}
        sums = {name: store.sums[name] for names in segments.values() for name in names}
        return {**self._about(), "segments": segments, "sums": sums}

    def load(self, store: Segments, saved: Mapping[str, Any]) -> None:
        """Restore the saved ring."""
        self._check_fits(saved)
        for name in (name for names in saved["segments"].values() for name in names):
            store.verify(name, saved["sums"][name])
        for kind, ring in self._rings.items():
            ring.load(store, saved["segments"][_name(kind)], saved["count"])
        self.count = saved["count"]

    def _about(self) -> dict[str, Any]:
        tensors = {
            name: describe(kind, layout.shapes[name])
            for kind, layout in self._layouts.items()
            for name in layout.slices
        }
        return {"count": self.count, "length": self.length, "tensors": tensors}

    def _check_fits(self, saved: Mapping[str, Any]) -> None:
        check_fits(self._about(), saved)
        count, length = saved["count"], saved["length"]
        check(
            self.length <= length or count <= length,
            f"The window is {self.length}, but only the last {length} models were saved.",
        )


def check_fits(ours: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raise unless the saved values are of the same kind and for the same tensors."""
    kinds = {"fixed": "the past models of a fixed window", "auto": "the sums of window='auto'"}
    here, there = (kinds[about.get("kind", "fixed")] for about in (ours, saved))
    check(here == there, f"The saved state has {there}; expected {here}.")
    tensors = ours["tensors"], dict(saved["tensors"])
    for name in {**tensors[0], **tensors[1]}:
        here, there = (about.get(name, "not averaged") for about in tensors)
        check(here == there, f"{name} is {here}, but was {there} when it was saved.")


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def describe(kind: torch.dtype, shape: Sequence[int]) -> str:
    """A dtype and a shape, as in `float32 [3, 4]`."""
    return f"{_name(kind)} {list(shape)}"


def check_same(name: str, kind: torch.dtype, shape: tuple[int, ...], now: Tensor) -> None:
    """Raise if the dtype or shape of a tensor has changed."""
    if now.dtype != kind or now.shape != shape:
        was, found = f"{_name(kind)} {shape}", f"{_name(now.dtype)} {tuple(now.shape)}"
        raise UsageError(f"{name} was {was} when averaging started, and is now {found}.")

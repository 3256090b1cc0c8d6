"""Sums of the past values of named tensors, over a window that is chosen by their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from wima.averaging.wima import DEFAULT_K, AutoWindow
from wima.core.errors import check
from wima.core.vector import Layout, Vector
from wima.storage.ring import Ring
from wima.storage.segments import Segments
from wima.storage.states import Json, decode, encode
from wima.training.tensors import check_fits, check_same, describe

KIND = "auto"


class TensorSums:
    """The state of `WIMA("auto")` for a set of named tensors: a few float64 sums.

    Tensors of all dtypes are concatenated into one vector.
    """

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device | str = "cpu") -> None:
        self._layout = Layout.of(tensors)
        self._kinds = {name: tensor.dtype for name, tensor in tensors.items()}
        self._device = torch.device(device)
        start = torch.zeros(self._layout.size, dtype=torch.float64, device=device)
        self._rule, self._past = AutoWindow(DEFAULT_K), Ring(0, start)
        self._state = self._rule.init(start)
        self._scored = False  # whether this object has seen a gradient
        self.count = 0  # pushes so far

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
        found = {name: tensor.grad for name, tensor in leaves.items() if tensor.grad is not None}
        gradient = self._flat(found)
        check(
            self._scored or bool(gradient.any()),
            "window='auto' chooses W by gradients, and there are none: call update() after "
            "optimizer.step() and before zero_grad().",
        )
        if found and bool(gradient.isfinite().all()):  # false if a gradient scaler skipped the step
            self._state = self._rule.use_gradient(self._state, gradient)
            self._scored = True

    @torch.no_grad()
    def push(self, tensors: Mapping[str, Tensor]) -> None:
        """Add the tensors to the sums."""
        for name, kind in self._kinds.items():
            check_same(name, kind, self._layout.shapes[name], tensors[name])
        self._state = self._rule.update(self._state, self._flat(tensors), self._past)
        self.count += 1

    def _flat(self, tensors: Mapping[str, Tensor]) -> Vector:
        """The tensors as one vector, 0 where one is missing; one transfer between devices."""
        device = next((tensor.device for tensor in tensors.values()), self._device)
        widest = reduce(torch.promote_types, self._kinds.values())
        flat = torch.zeros(self._layout.size, dtype=widest, device=device)
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
        return {name: means[name].to(kind) for name, kind in self._kinds.items()}

    def state(self) -> dict[str, Any]:
        """The state as tensors, numbers and strings; the tensors are not copies."""
        vectors: dict[str, Tensor] = {}
        return {**self._about(), "state": encode(self._state, KIND, vectors, {}), "rows": vectors}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the sums from their state."""
        self._restore(state, lambda name: state["rows"][name].clone())

    def save(self, store: Segments) -> dict[str, Any]:
        """Write all sums; returns the JSON that `load` takes."""
        about = self.state()
        segments = {name: store.write(KIND, {name: v}) for name, v in about.pop("rows").items()}
        sums = {name: store.sums[name] for name in segments.values()}
        return {**about, "segments": segments, "sums": sums}

    def load(self, store: Segments, saved: Mapping[str, Any]) -> None:
        """Restore the saved sums."""

        def read(name: str) -> Tensor:
            store.verify(saved["segments"][name], saved["sums"][saved["segments"][name]])
            return store.read(saved["segments"][name], name)

        self._restore(saved, read)

    def _restore(self, saved: Mapping[str, Any], read: Callable[[str], Tensor]) -> None:
        check_fits(self._about(), saved)

        def tensor(name: str) -> Tensor:
            found = read(name)  # scores are on the CPU, whatever the device of the sums
            return found.to(self._device) if len(found) == self._layout.size else found

        self._state = decode(saved["state"], self._state, tensor, {})
        self.count = saved["count"]

    def _about(self) -> dict[str, Json]:
        tensors = {n: describe(k, self._layout.shapes[n]) for n, k in self._kinds.items()}
        return {"kind": KIND, "count": self.count, "tensors": tensors}

"""The mean of any window of a run's rounds, from its snapshots.

    mean of rounds a + 1 ... b  =  (sum of the snapshots between them) / (b - a)

Sums and the quotient are in float64, and are rounded once to the dtype of the models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from wima.core.checks import check_count, is_count
from wima.core.errors import UsageError, check, unknown
from wima.core.vector import Layout, Vector
from wima.runs.build import build_task
from wima.runs.folder import MALFORMED, SNAPSHOTS, Run
from wima.runs.snapshots import ABOUT, checksum, files_in
from wima.simulation.task import data_checksum
from wima.storage.files import new_file
from wima.storage.reading import check_file
from wima.storage.states import DTYPES

UNREADABLE: tuple[type[Exception], ...] = (*MALFORMED, SafetensorError, RuntimeError)


class Snapshot(NamedTuple):
    """A file, and the rounds whose models it sums."""

    path: Path
    first: int
    last: int
    dtype: torch.dtype  # of the models
    about: dict[str, Any]  # its metadata


def snapshots_of(run: Run) -> list[Snapshot]:
    """The snapshots of a run, oldest first; raises `UsageError` if there are none."""
    files = files_in(run.path / SNAPSHOTS)
    every, again = run.settings.snapshots, f"wima run {run.path / 'settings.toml'}"
    check(
        bool(files or every),
        f"The run in {run.path} has no snapshots; run it again with snapshots=25: "
        f"`{again} snapshots=25 --out ...`.",
    )
    yet = f"The run in {run.path} has no snapshot yet; the first comes after round {every}."
    check(bool(files), yet)
    return [_read(file) for file in files]


def _read(path: Path) -> Snapshot:
    check_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            about = dict(json.loads(file.metadata()[ABOUT]))
        first, last = about["first"], about["last"]
        if not (is_count(first) and first <= last == int(path.stem)):
            raise ValueError(f"invalid rounds {first!r:.20} ... {last!r:.20}")
        return Snapshot(path, first, last, DTYPES[about["dtype"]], about)
    except UNREADABLE as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> UsageError:
    return UsageError(
        f"{path} is damaged: {type(error).__name__}: {error!s:.200}. Windows that need it cannot "
        "be computed; remove it to use the others."
    )


def trailing(snapshots: Sequence[Snapshot], at: int) -> list[Snapshot]:
    """The consecutive snapshots up to round `at`, newest first."""
    chain: list[Snapshot] = []
    for snapshot in reversed([s for s in snapshots if s.last <= at]):
        if snapshot.last != (chain[-1].first - 1 if chain else at):
            break
        chain.append(snapshot)
    return chain


def choose(snapshots: Sequence[Snapshot], window: int, at: int | None) -> list[Snapshot]:
    """The snapshots of a window.  at: its last round; default: that of the newest snapshot."""
    check_count("--window", window)
    ends = [snapshot.last for snapshot in snapshots]
    newest = ends[-1]
    at = newest if at is None else at
    check_count("--at", at)
    check(at <= newest, f"--at {at} is after the last snapshot, at round {newest}.")
    check(at in ends, f"--at must be a round with a snapshot, got {at}; {_nearest(at, ends)}.")
    chain = trailing(snapshots, at)
    sizes = [at - snapshot.first + 1 for snapshot in chain]
    check(
        window <= sizes[-1],
        f"The longest window that ends at round {at} is --window {sizes[-1]}, got {window}.",
    )
    check(
        window in sizes,
        f"A window must begin and end at a snapshot; --window {window} would begin after round "
        f"{at - window}. Of the windows that end at round {at}, {_nearest(window, sizes)}.",
    )
    return chain[sizes.index(window) :: -1]


def _nearest(value: int, possible: Sequence[int]) -> str:
    below, above = ([p for p in possible if (p < value) == under] for under in (True, False))
    near = [str(side) for side in (max(below, default=None), min(above, default=None)) if side]
    return f"the nearest {'are' if len(near) > 1 else 'is'} {' and '.join(near)}"


def mean(snapshots: Sequence[Snapshot]) -> dict[str, Tensor]:
    """The mean of the models in these snapshots, oldest first, as tensors by name."""
    totals: dict[str, Tensor] = {}
    for snapshot in snapshots:
        tensors = _tensors(snapshot)
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        same = not totals or shapes == {name: total.shape for name, total in totals.items()}
        check(same, f"{snapshot.path} has a different model from {snapshots[0].path}.")
        totals = {name: t + totals[name] if totals else t for name, t in tensors.items()}
    rounds = snapshots[-1].last - snapshots[0].first + 1
    return {name: (total / rounds).to(snapshots[-1].dtype) for name, total in totals.items()}


def _tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    about = dict(snapshot.about)
    try:
        expected, tensors = about.pop("sha256"), load_file(snapshot.path)
        if checksum(about, tensors) != expected:
            raise ValueError("its checksum is wrong")
        return tensors
    except UNREADABLE as error:
        raise _damaged(snapshot.path, error) from None


def write_window(
    run: Run, window: int, out: Path, at: int | None = None, force: bool = False
) -> tuple[int, int]:
    """Write the mean of the last `window` models up to round `at`; returns its first and last."""
    check(out.suffix == ".safetensors", f"--out must end in .safetensors, got {out}.")
    chosen = choose(snapshots_of(run), window, at)
    first, last = chosen[0].first, chosen[-1].last
    with new_file(out, force) as draft:
        save_file(mean(chosen), draft, {"wima": f"mean of rounds {first} ... {last}"})
    return first, last


class Trial:
    """Evaluates windows of a run on its own test data."""

    def __init__(self, run: Run, metric: str | None) -> None:
        found = snapshots_of(run)
        self.snapshots = trailing(found, found[-1].last)[::-1]
        self._task = build_task(run.settings)
        then, now = run.environment.get("data_checksum"), data_checksum(self._task)
        check(then in (None, now), f"The data differ from those of the run in {run.path}.")
        measured = list(self._evaluate([self.snapshots[-1]]))
        self.metric = metric or measured[0]
        if self.metric not in measured:
            raise unknown("metric", self.metric, measured)
        self._plain = dict(zip(*run.curve("plain", self.metric), strict=True))
        self._known: dict[tuple[int, int], float] = {}

    @property
    def sizes(self) -> list[int]:
        """The windows that end at the newest snapshot, shortest first."""
        return [self.snapshots[-1].last - s.first + 1 for s in reversed(self.snapshots)]

    def ends(self, counts: Sequence[int]) -> list[int]:
        """The last rounds after `counts` snapshots, if the plain model was evaluated there."""
        rounds = [self.snapshots[count - 1].last for count in counts]
        found = [t for t in rounds if t in self._plain]
        check(bool(found), f"The plain model was not evaluated in rounds {rounds}: see eval_every.")
        return found

    def value(self, window: int, at: int) -> float:
        """The metric of a window, or of all rounds if there are fewer; 1 is the plain model."""
        if window == 1:
            return self._plain[at]
        chosen = choose(self.snapshots, min(window, at - self.snapshots[0].first + 1), at)
        key = chosen[0].first, at
        if key not in self._known:
            self._known[key] = self._evaluate(chosen)[self.metric]
        return self._known[key]

    def _evaluate(self, chosen: Sequence[Snapshot]) -> dict[str, float]:
        return self._task.evaluate(vector_of(mean(chosen), self._task.layout))


def vector_of(tensors: dict[str, Tensor], layout: Layout | None) -> Vector:
    """Tensors by name as one vector; "w" is the vector itself."""
    names = layout.slices if layout else tensors
    check(names.keys() == tensors.keys(), "The tensors do not match the model in the settings.")
    return torch.cat([tensors[name].reshape(-1) for name in names])

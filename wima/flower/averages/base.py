"""What an averaged strategy carries, whichever of Flower's two strategy interfaces it has."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, Literal, TypedDict, TypeVar

import torch
from torch import Tensor

from wima.averaging import Averager, named
from wima.core.checks import check_count, check_one_of
from wima.core.errors import RunError, UsageError, check, unknown
from wima.flower.averages import state
from wima.flower.averages.memory import StrategyMemory
from wima.flower.averages.models import Arrays, Models, log
from wima.flower.averages.serving import Serve, Serving
from wima.flower.grid.generators import preserved
from wima.storage.lock import Lock
from wima.storage.segments import Segments

Packed = TypeVar("Packed")  # Flower's type of a model


class AveragingOptions(TypedDict, total=False):
    """The settings of `averaged` and `averaged_legacy`."""

    evaluate_clients_with: Literal["average", "plain"]  # which model clients evaluate
    serve: Serve  # which model is the run's result, see `Serving`
    patience: int  # evaluations in a row that change the served model, if serve is "better"
    metric: str  # the server's metric that decides then
    lower_is_better: bool  # of this metric
    rounds: int | None  # of the run, for SWA; `start` knows it
    classifier: Sequence[str]  # names of the last layer's arrays, for averages of a part
    folder: str | Path | None  # the averages' state is saved there and resumed from it
    save_every: int  # rounds
    window_store: Literal["memory", "files"]  # past models; "files" needs a folder
    store_dtype: Literal["float32", "bfloat16"]  # of past models


class Averaging(Generic[Packed]):
    """The averages of a strategy's global models, and which model is served.

    With several averagers, the first one is "the average".
    """

    def __init__(
        self,
        strategy: Any,
        averagers: Averager | Sequence[Averager],
        pack: Callable[[Arrays], Packed],
        unpack: Callable[[Packed], Arrays],
        options: AveragingOptions,
    ) -> None:
        for name in options:
            if name not in AveragingOptions.__annotations__:
                raise unknown("setting", name, AveragingOptions.__annotations__)
        self._pack, self._unpack = pack, unpack
        self._evaluated = options.get("evaluate_clients_with", "average")
        check_one_of("evaluate_clients_with", self._evaluated, ("average", "plain"))
        self._save_every = options.get("save_every", 1)
        check_count("save_every", self._save_every)
        keys = ("serve", "patience", "metric", "lower_is_better")
        self.serving = Serving(**{key: options[key] for key in keys if key in options})  # type: ignore[literal-required]
        self._memory = StrategyMemory(strategy)
        self._store = _open(options)
        self._models = Models(
            named([averagers] if isinstance(averagers, Averager) else averagers),
            rounds=options.get("rounds"),
            classifier=options.get("classifier", ()),
            **_ring(options, self._store),
        )
        if self._store is not None:
            self._restore(self._store)

    def _restore(self, store: Segments) -> None:
        self._unlock = weakref.finalize(self, Lock(store.folder).release)
        try:
            resumed = state.restore(self._models, store)
            if resumed is not None and "strategy" in resumed.extra:
                self._memory.decode(resumed.extra["strategy"], resumed.tensor)
        except BaseException:
            self.close()
            raise
        if resumed is not None:
            if self.serving.serve == "better":
                judged = resumed.extra
                self.serving.average, self.serving.streak = judged["average"], judged["streak"]
            log.info("Averages go on after %s models, from %s.", self._models.seen, store.folder)

    @property
    def seen(self) -> int:
        """How many global models were averaged so far, over restarts of the server."""
        return self._models.seen

    @property
    def names(self) -> list[str]:
        """The names of the averages; the first is "the average"."""
        return list(self._models.averagers)

    def begin(self, packed: Packed, rounds: int | None = None) -> None:
        """The model before the first round, and how many rounds there will be."""
        if self._models.rounds is None:
            self._models.rounds = rounds
        if not self._models.begun:
            self._models.begin(self._unpack(packed))
        if self._memory.waiting is not None:
            self._memory.begin(self._unpack(packed), self._models.newest)

    def round(self, t: int) -> int:
        """The number of Flower's round t over all servers."""
        return self._memory.round(t)

    def add(self, t: int, packed: Packed) -> None:
        """Take in the global model of round t."""
        try:
            arrays = self._unpack(packed)
        except ValueError as error:
            raise RunError(f"Round {t}: the model cannot be read: {error}.") from None
        added, self._memory.done = self._models.add(t, arrays), t
        if added and self.seen % self._save_every == 0:
            self.save()

    def save(self) -> None:
        """Write the state to the folder, if there is one."""
        if self._store is not None:
            extra = {key: asdict(self.serving)[key] for key in ("average", "streak")}
            tensors: dict[str, Tensor] = {}
            extra["strategy"] = self._memory.encode(tensors)
            state.save(self._models, self._store, extra, tensors)

    def close(self) -> None:
        """Let another server use the folder, as the end of this one does."""
        if self._store is not None:
            self._unlock()

    def model(self, name: str) -> Packed:
        """The named model: "plain", or an average."""
        return self._pack(self._models.arrays(name))

    def models(self) -> dict[str, Packed]:
        """All models by name; empty before the first round."""
        return {name: self.model(name) for name in ("plain", *self.names)} if self.seen else {}

    @property
    def served(self) -> str:
        """The name of the model to serve now."""
        return self.names[0] if self.serving.average and self.seen else "plain"

    def for_clients(self, plain: Packed) -> Packed:
        """The model that clients evaluate."""
        return self.model(self.names[0]) if self._evaluated == "average" and self.seen else plain

    def evaluate(
        self, plain: Mapping[str, Any], metrics: Callable[[Packed], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The metrics of the averages as "name/metric", given those of the plain model.

        Draws no random numbers from those that the rest of the run will draw.
        """
        if not self.seen:
            return {}
        with preserved():
            found = {name: metrics(self.model(name)) for name in self.names}
        self.serving.judge(plain, found[self.names[0]])
        return {f"{name}/{key}": v for name, values in found.items() for key, v in values.items()}


def _open(options: AveragingOptions) -> Segments | None:
    given = options.get("folder")
    if given is None:
        check(options.get("window_store") != "files", "window_store='files' needs a folder.")
        return None
    folder = Path(given)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be used as a folder: {error.strerror}.") from None
    return Segments(folder)


def _ring(options: AveragingOptions, store: Segments | None) -> dict[str, Any]:
    where = options.get("window_store", "memory")
    check_one_of("window_store", where, ("memory", "files"))
    dtype = options.get("store_dtype", "float32")
    check_one_of("store_dtype", dtype, ("float32", "bfloat16"))
    return {
        "mapped": store if where == "files" else None,
        "dtype": torch.bfloat16 if dtype == "bfloat16" else None,
    }


def subclassed(strategy: Any, mixin: type, averaging: Averaging[Any]) -> None:
    """Make the instance one of a subclass of its own class, with the mixin's methods first.

    The instance stays the same object: its fields, whoever holds it, `isinstance` and methods that
    the class defines, such as a `start` of its own, are as they were.
    """
    own = type(strategy)
    check(
        not issubclass(own, mixin),
        "The strategy is averaged already; give several averagers in one list.",
    )
    body = {"__module__": own.__module__, "__doc__": own.__doc__}
    strategy.__class__ = type(f"Averaged{own.__name__}", (mixin, own), body)
    strategy.averaging = averaging


def private_wrappers(strategies: ModuleType) -> tuple[type, ...]:
    """Flower's strategies that wrap another one and add noise."""
    kinds = vars(strategies).items()
    return tuple(kind for name, kind in kinds if name.startswith(("DifferentialPrivacy", "DPFed")))


def refuse_privacy_outside(strategy: Any, wrappers: tuple[type, ...]) -> None:
    """Raise if a wrapper that adds noise is calling the averaged strategy inside it.

    Flower's wrappers hold what they wrap as `self.strategy`, which does not know of them; so their
    calls are looked for on the stack.
    """
    for caller in _callers():
        if caller is strategy or not isinstance(caller, wrappers):
            continue
        inside = caller
        while (inside := getattr(inside, "strategy", None)) is not None:
            if inside is strategy:
                name = type(caller).__name__
                raise UsageError(
                    f"{name}(averaged(...)) would average the models before {name} has added its "
                    "noise, and their average would be released without protection. Put the "
                    f"average outside: averaged({name}(...)), where it only sees what is private."
                )


def _callers() -> Iterator[Any]:
    """The `self` of every method that is being called, innermost first."""
    frame = sys._getframe(2)
    while frame is not None:
        if "self" in frame.f_code.co_varnames[:1]:
            yield frame.f_locals.get("self")
        frame = frame.f_back  # type: ignore[assignment]

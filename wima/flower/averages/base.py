"""The averages of a strategy, for both of Flower's strategy interfaces."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from wima.averaging import Averager, named
from wima.core.checks import check_count, check_one_of
from wima.core.errors import RunError, UsageError, check, unknown
from wima.flower.averages import state
from wima.flower.averages.clients import summaries
from wima.flower.averages.memory import StrategyMemory
from wima.flower.averages.models import Arrays, Models, log
from wima.flower.averages.privacy import Privacy
from wima.flower.averages.serving import Serve, Serving
from wima.flower.averages.steps import Packed, Read, Reply, Steps
from wima.flower.grid.generators import preserved
from wima.storage.lock import Lock
from wima.storage.segments import Segments


class AveragingOptions(TypedDict, total=False):
    """The settings of `averaged` and `averaged_legacy`."""

    evaluate_clients_with: Literal["average", "plain"]  # which model clients evaluate
    serve: Serve  # which model is the run's result, see `Serving`
    patience: int  # if serve is "better": evaluations in a row that change the served model
    metric: str  # if serve is "better": the server's metric that decides
    lower_is_better: bool  # whether lower values of this metric are better
    rounds: int | None  # of the run, for SWA; `start` sets it
    classifier: Sequence[str]  # names of the last layer's arrays, for averages of a part
    folder: str | Path | None  # where the averages' state is saved and resumed from
    save_every: int  # rounds
    window_store: Literal["memory", "files"]  # past models; "files" needs a folder
    store_dtype: Literal["float32", "bfloat16"]  # of past models


class Interface(NamedTuple, Generic[Packed]):
    """What differs between Flower's two interfaces."""

    pack: Callable[[Arrays], Packed]
    unpack: Callable[[Packed], Arrays]
    privacy: Privacy


class Averaging(Generic[Packed]):
    """The averages of a strategy's global models, and which model is served.

    With several averagers, the first one is "the average".
    """

    def __init__(
        self,
        strategy: Any,
        averagers: Averager | Sequence[Averager],
        interface: Interface[Packed],
        options: AveragingOptions,
    ) -> None:
        for name in options:
            if name not in AveragingOptions.__annotations__:
                raise unknown("setting", name, AveragingOptions.__annotations__)
        self._pack, self._unpack = interface.pack, interface.unpack
        self._evaluated = options.get("evaluate_clients_with", "average")
        check_one_of("evaluate_clients_with", self._evaluated, ("average", "plain"))
        self._save_every = options.get("save_every", 1)
        check_count("save_every", self._save_every)
        keys = ("serve", "patience", "metric", "lower_is_better")
        self.serving = Serving(**{key: options[key] for key in keys if key in options})  # type: ignore[literal-required]
        self.clients: dict[int, Any] = {}  # round -> model -> metric -> its summary over clients
        self._memory = StrategyMemory(strategy)
        watched = named([averagers] if isinstance(averagers, Averager) else averagers)
        self._steps = _steps(strategy, watched, interface)
        self._store = _open(options)
        self._models = Models(
            watched,
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
                saved = resumed.extra
                self.serving.average, self.serving.streak = saved["average"], saved["streak"]
            log.info("Averages resumed after %s models, from %s.", self._models.seen, store.folder)

    @property
    def seen(self) -> int:
        """How many global models have been averaged so far, across server restarts."""
        return self._models.seen

    @property
    def names(self) -> list[str]:
        """The names of the averages; the first is "the average"."""
        return list(self._models.averagers)

    def begin(self, packed: Packed, rounds: int | None = None) -> None:
        """Set the model before the first round, and the number of rounds."""
        if self._models.rounds is None:
            self._models.rounds = rounds
        if not self._models.begun:
            self._models.begin(self._unpack(packed))
        if self._memory.waiting is not None:
            self._memory.begin(self._unpack(packed), self._models.newest)

    def send(self, packed: Packed) -> None:
        """Start a round with the model that clients train from."""
        self.begin(packed)
        if self._steps is not None:
            self._steps.send(packed, self._models)

    def listen(self, replies: Iterable[Reply], read: Read[Reply, Packed]) -> Iterable[Reply]:
        """The round's replies, unchanged; they are read only if an averager needs their mean."""
        return replies if self._steps is None else self._steps.listen(replies, read)

    def round(self, t: int) -> int:
        """The number of Flower's round t, counted across server restarts."""
        return self._memory.round(t)

    def add(self, t: int, packed: Packed) -> None:
        """Add the global model of round t."""
        try:
            arrays = self._unpack(packed)
        except ValueError as error:
            raise RunError(f"Round {t}: the model cannot be read: {error}.") from None
        fresh = None if self._steps is None else self._steps.end(t, arrays)
        added, self._memory.done = self._models.add(t, arrays, fresh), t
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
        """Release the folder for another server; this also happens when the process exits."""
        if self._store is not None:
            self._unlock()

    def model(self, name: str) -> Packed:
        """The named model: "plain", or an average."""
        return self._pack(self._models.arrays(name))

    def models(self) -> dict[str, Packed]:
        """All models by name; empty before the first round."""
        return {name: self.model(name) for name in ("plain", *self.names)} if self.seen else {}

    @property
    def windows(self) -> dict[str, int]:
        """Average -> its number of models, for averages whose name does not state it."""
        return self._models.watch.used() if self._models.watch else {}

    @property
    def served(self) -> str:
        """The name of the model that is currently served."""
        return self.names[0] if self.serving.average and self.seen else "plain"

    @property
    def evaluated(self) -> str:
        """The name of the model that clients currently evaluate."""
        return self.names[0] if self._evaluated == "average" and self.seen else "plain"

    def for_clients(self, plain: Packed) -> Packed:
        """The model that clients evaluate."""
        return plain if self.evaluated == "plain" else self.model(self.evaluated)

    def answered(self, t: int, answers: Sequence[Mapping[str, Any]]) -> None:
        """Summarise the metrics that clients returned in Flower's round t."""
        found = summaries(t, answers, self.serving.prefers_less)
        if found:
            self.clients[t] = {self.evaluated: found}

    def evaluate(
        self, plain: Mapping[str, Any], metrics: Callable[[Packed], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The metrics of the averages as "name/metric", given those of the plain model.

        They include the `windows`, as "name/window".
        The global random generators are left as they were.
        """
        if not self.seen:
            return {}
        with preserved():
            found = {name: metrics(self.model(name)) for name in self.names}
        self.serving.judge(plain, found[self.names[0]])
        windows = {f"{name}/window": window for name, window in self.windows.items()}
        return windows | {f"{name}/{key}": v for name in found for key, v in found[name].items()}


def _steps(
    strategy: Any, averagers: Mapping[str, Averager], interface: Interface[Packed]
) -> Steps[Packed] | None:
    """Computes the clients' mean steps; None if no averager needs them."""
    if not any(averager.rule().needs_gradient for averager in averagers.values()):
        return None
    private = interface.privacy.covers(strategy)
    if private:
        interface.privacy.check_mean(strategy)
    return Steps(interface.unpack, released=private)


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
    """Change the instance's class to a subclass of it that has the mixin's methods first.

    The instance stays the same object: its fields, references to it, `isinstance` and methods that
    its class defines, such as its own `start`, are unchanged.
    """
    own = type(strategy)
    check(
        not issubclass(own, mixin),
        "The strategy is already averaged; pass several averagers as one list.",
    )
    body = {"__module__": own.__module__, "__doc__": own.__doc__}
    strategy.__class__ = type(f"Averaged{own.__name__}", (mixin, own), body)
    strategy.averaging = averaging

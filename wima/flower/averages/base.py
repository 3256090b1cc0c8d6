"""What an averaged strategy carries, whichever of Flower's two strategy interfaces it has."""

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
    patience: int  # evaluations in a row that change the served model, if serve is "better"
    metric: str  # the server's metric that decides then
    lower_is_better: bool  # of this metric
    rounds: int | None  # of the run, for SWA; `start` knows it
    classifier: Sequence[str]  # names of the last layer's arrays, for averages of a part
    folder: str | Path | None  # the averages' state is saved there and resumed from it
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

    def send(self, packed: Packed) -> None:
        """The model that clients train from in the round that begins."""
        self.begin(packed)
        if self._steps is not None:
            self._steps.send(packed, self._models)

    def listen(self, replies: Iterable[Reply], read: Read[Reply, Packed]) -> Iterable[Reply]:
        """The replies of the round as they came; nothing is read unless an averager asks for it."""
        return replies if self._steps is None else self._steps.listen(replies, read)

    def round(self, t: int) -> int:
        """The number of Flower's round t over all servers."""
        return self._memory.round(t)

    def add(self, t: int, packed: Packed) -> None:
        """Take in the global model of round t."""
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
    def windows(self) -> dict[str, int]:
        """Of how many models an average is, by its name, where that does not say it."""
        return self._models.watch.used() if self._models.watch else {}

    @property
    def served(self) -> str:
        """The name of the model to serve now."""
        return self.names[0] if self.serving.average and self.seen else "plain"

    @property
    def evaluated(self) -> str:
        """The name of the model that clients evaluate now."""
        return self.names[0] if self._evaluated == "average" and self.seen else "plain"

    def for_clients(self, plain: Packed) -> Packed:
        """The model that clients evaluate."""
        return plain if self.evaluated == "plain" else self.model(self.evaluated)

    def answered(self, t: int, answers: Sequence[Mapping[str, Any]]) -> None:
        """Take in the metrics that clients returned in Flower's round t, of what they evaluated."""
        found = summaries(t, answers, self.serving.prefers_less)
        if found:
            self.clients[t] = {self.evaluated: found}

    def evaluate(
        self, plain: Mapping[str, Any], metrics: Callable[[Packed], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The metrics of the averages as "name/metric", given those of the plain model.

        Among them are the `windows`, as "name/window".
        Draws no random numbers from those that the rest of the run will draw.
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
    """What forms the clients' mean steps; None if no averager asks for them."""
    if not any(averager.judges for averager in averagers.values()):
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

"""The averages of a strategy's global models and the strategy's own state, in memory and in files.

Flower represents models as named arrays; averagers work on one vector.  Floating-point arrays are
laid out in a float32 vector, or float64 if one of them is; integer arrays keep their newest value.

Files have the format of a run's checkpoints: a JSON manifest and immutable safetensors segments,
with checksums; the two newest states are kept.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

from wima.averaging import SWA, Averager, Averages, named
from wima.core import errors
from wima.core.errors import RunError, UsageError, check, is_number, unknown
from wima.core.statistics import summary
from wima.core.vector import Layout, Vector
from wima.flower.arrays import Arrays, flatten, log, preserved, shapes_of
from wima.flower.averages.steps import Steps
from wima.storage import manifests
from wima.storage.files import Lock
from wima.storage.ring import Ring
from wima.storage.segments import Segments
from wima.storage.states import Json

STATISTICS = ("running_mean", "running_var")  # of BatchNorm


class AveragingOptions(TypedDict, total=False):
    """The settings of `averaged` and `averaged_legacy`."""

    evaluate_clients_with: Literal["average", "plain"]  # which model clients evaluate
    serve: Literal["plain", "average"]  # which model is the run's result
    metric: str  # a metric of the clients, for `lower_is_better`
    lower_is_better: bool  # whether its worst values are the highest, as those of a loss
    rounds: int | None  # of the run, for SWA; `start` sets it
    classifier: Sequence[str]  # names of the last layer's arrays, for averages of a part
    folder: str | Path | None  # where the averages' state is saved and resumed from
    save_every: int  # rounds
    window_store: Literal["memory", "files"]  # past models; "files" needs a folder
    store_dtype: Literal["float32", "bfloat16"]  # of past models
    diverged: float  # leave out models with more than this times the initial norm, or 1


DEFAULTS: dict[str, Any] = {"evaluate_clients_with": "average", "serve": "plain", "rounds": None}
DEFAULTS |= {"metric": "accuracy", "lower_is_better": False, "classifier": (), "folder": None}
DEFAULTS |= {"save_every": 1, "window_store": "memory", "store_dtype": "float32", "diverged": 1e4}


class Interface(NamedTuple):
    """What differs between Flower's two strategy interfaces; a packed model has Flower's type."""

    pack: Callable[[Arrays], Any]
    unpack: Callable[[Any], Arrays]
    strategies: ModuleType  # with Flower's own strategies
    aggregate: str  # the method of a strategy that computes the new model


class Averaging:
    """The averages of a strategy's global models, and which model is served.

    With several averagers, the first one is "the average".
    """

    def __init__(
        self,
        strategy: Any,
        averagers: Averager | Sequence[Averager],
        interface: Interface,
        options: AveragingOptions,
    ) -> None:
        for name in options:
            if name not in DEFAULTS:
                raise unknown("setting", name, DEFAULTS)
        self._settings = settings = {**DEFAULTS, **options}
        check(
            settings["serve"] != "better",
            "serve='better' was removed: evaluate the models of result.models on validation data "
            "and take the better one, or choose serve='plain' or 'average'.",
        )
        for name in ("serve", "evaluate_clients_with", "window_store", "store_dtype"):
            allowed = get_args(get_type_hints(AveragingOptions)[name])
            errors.check_one_of(name, settings[name], allowed)
        errors.check_switch("lower_is_better", settings["lower_is_better"])
        errors.check_count("save_every", settings["save_every"])
        errors.check_rate("diverged", settings["diverged"])

        self.averagers = named(averagers)
        self.names = list(self.averagers)  # the first is "the average"
        check(bool(self.names), "averaged() needs an averager, for example WIMA(window=100).")
        parts = sorted({a.part for a in self.averagers.values()} - {"all"})
        if parts and not settings["classifier"]:
            raise UsageError(
                f"part={parts[0]!r} needs the names of the last layer's arrays: "
                "averaged(..., classifier=['fc.weight', 'fc.bias'])."
            )
        self.begun = False  # whether the rounds to come are those of this strategy's own run
        self.returned: dict[int, Any] = {}  # Flower's last round -> its model, if that is checked
        self.clients: dict[int, Any] = {}  # round -> model -> metric -> its summary over clients
        self._interface, self._strategy = interface, StrategyState(strategy)
        self.round = self._strategy.round  # from Flower's number of a round to ours
        self._steps: Steps | None = None  # computed only if an averager needs them
        if any(averager.rule().needs_gradient for averager in self.averagers.values()):
            private = check_private_mean(strategy, interface)
            self._steps = Steps(interface.unpack, released=private)
        self._rounds: int | None = settings["rounds"]  # of the run
        self._newest: Arrays = {}  # the newest model; before the first round, the initial one
        self._layout: Layout | None = None  # of the vector that is averaged
        self._dtype = torch.float32  # of that vector
        self._averages: Averages | None = None
        self._first_norm = 0.0  # of the model before the first round, or of the first one known
        self._store: Segments | None = None
        if settings["folder"] is None:
            check(settings["window_store"] != "files", "window_store='files' needs a folder.")
            return
        folder = Path(settings["folder"])
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{folder} cannot be used as a folder: {error.strerror}.") from None
        self._unlock = weakref.finalize(self, Lock(folder).release)
        try:
            self._store = Segments(folder)
            self._restore(self._store)
        except BaseException:
            self.close()
            raise

    @property
    def seen(self) -> int:
        """How many global models have been averaged so far, across server restarts."""
        return self._averages.ring.count if self._averages else 0

    @property
    def windows(self) -> dict[str, int]:
        """Average -> its number of models, for averages whose name does not state it."""
        return self._averages.used() if self._averages else {}

    @property
    def served(self) -> str:
        """The name of the model that is currently served."""
        return self.names[0] if self._settings["serve"] == "average" and self.seen else "plain"

    @property
    def evaluated(self) -> str:
        """The name of the model that clients currently evaluate."""
        average = self._settings["evaluate_clients_with"] == "average"
        return self.names[0] if average and self.seen else "plain"

    def model(self, name: str) -> Any:
        """The named model: "plain", or an average; with the dtypes of the newest model."""
        if self._averages is None or self._layout is None or not self.seen:
            raise RunError(f"There is no model {name!r} yet: no round has been aggregated.")
        arrays = dict(self._newest)
        if name != "plain":
            parts = self._layout.unflatten(self._averages.vector(name))
            arrays |= {key: part.numpy().astype(arrays[key].dtype) for key, part in parts.items()}
        return self._interface.pack(arrays)

    def models(self) -> dict[str, Any]:
        """All models by name; empty before the first round."""
        return {name: self.model(name) for name in ("plain", *self.names)} if self.seen else {}

    def begin(self, packed: Any, rounds: int | None = None) -> None:
        """Set the model before the first round, and the number of rounds.

        The model shows which arrays are integers, since Flower's means of integers are
        floating-point, and EMA(begin="initial") starts from it.
        """
        self.begun = True
        if self._rounds is None:
            self._rounds = rounds
        if not self._newest:
            self._newest = self._interface.unpack(packed)
        if self._strategy.waiting is not None:
            self._strategy.begin(self._interface.unpack(packed), self._newest)

    def send(self, packed: Any) -> None:
        """Start a round with the model that clients train from."""
        self.begin(packed)
        if self._steps is not None:
            self._steps.send(packed, self._averaged(), shapes_of(self._newest))

    def listen(self, replies: Any, read: Callable[[Any], tuple[Any, float] | None]) -> Any:
        """The round's replies, unchanged; they are read only if an averager needs their mean."""
        return replies if self._steps is None else self._steps.listen(replies, read)

    def add(self, t: int, packed: Any) -> None:
        """Add the global model of round t, and save the state if it is time to."""
        try:
            arrays = self._interface.unpack(packed)
        except ValueError as error:
            raise RunError(f"Round {t}: the model cannot be read: {error}.") from None
        step = None if self._steps is None else self._steps.end(t, arrays)
        self._strategy.done = t
        self._newest = self._newest or arrays
        _check_same_arrays(t, shapes_of(self._newest), shapes_of(arrays))
        if self._averages is None:
            self._lay_out(self._averaged(), arrays, self._newest)
        assert self._averages is not None and self._layout is not None
        w = flatten(arrays, self._layout.slices, self._dtype)
        norm, largest = _norm(w), self._settings["diverged"] * max(1.0, self._first_norm)
        if not norm <= largest:  # as in a simulation, whose run would end
            log.warning(
                "Round %s: the norm of the model is %.3g, not at most %.3g (the setting diverged); "
                "averages leave it out.",
                *(t, norm, largest),
            )
            return
        if step is not None:
            step = step.to(self._dtype)
            # Running statistics have no gradient; torch's names identify them.
            for name, part in self._layout.unflatten(step).items():
                if name.endswith(STATISTICS):
                    part.zero_()
            if not bool(torch.isfinite(step).all()):
                step = None  # too large for the models' dtype
        self._averages.update(w, step)
        self._newest = arrays
        if self.seen % self._settings["save_every"] == 0:
            self.save()

    def _averaged(self) -> list[str]:
        """The names of the arrays that are averaged, in the order of the vector."""
        if self._layout is not None:
            return list(self._layout.slices)
        return [name for name, array in self._newest.items() if _is_averaged(name, array)]

    def _lay_out(self, averaged: Sequence[str], like: Arrays, initial: Arrays) -> None:
        """Fix which arrays are averaged, their places in the vector, and its dtype."""
        check(bool(averaged), "The model has no floating-point array: there is nothing to average.")
        classifier = tuple(self._settings["classifier"])
        missing = [name for name in classifier if name not in averaged]
        if missing:
            raise UsageError(
                f"classifier: there is no floating-point array {missing[0]!r}; "
                f"the model has {', '.join(averaged)}."
            )
        shapes = {name: torch.empty(like[name].shape, device="meta") for name in averaged}
        self._layout = replace(Layout.of(shapes), classifier=classifier)
        double = any(like[name].dtype.itemsize > 4 for name in averaged)
        self._dtype = torch.float64 if double else torch.float32
        averagers = {name: self._for_run(a) for name, a in self.averagers.items()}
        w = flatten(initial, averaged, self._dtype)
        norm = _norm(w)
        self._first_norm = norm if isfinite(norm) else 0.0
        self._averages = Averages(
            averagers,
            w,
            self._layout.mask,
            mapped=self._store if self._settings["window_store"] == "files" else None,
            dtype=torch.bfloat16 if self._settings["store_dtype"] == "bfloat16" else None,
        )

    def _for_run(self, averager: Averager) -> Averager:
        if self._rounds is not None:
            return averager.for_run(self._rounds)
        if isinstance(averager, SWA) and 0 < averager.start < 1:
            raise UsageError(
                f"SWA.start = {averager.start} is a fraction of all rounds, whose number is not "
                "known: use averaged(..., rounds=100), or give SWA the number of a round."
            )
        return averager

    def for_clients(self, plain: Any) -> Any:
        """The model that clients evaluate."""
        return plain if self.evaluated == "plain" else self.model(self.evaluated)

    def summarize(self, t: int, answers: Sequence[Mapping[str, Any]]) -> None:
        """Set `clients` for Flower's round t: metric -> the `summary` of its finite values.

        Never raises because of what clients sent: values that are not numbers are left out.
        """
        pairs = [pair for answer in answers for pair in answer.items()]
        numbers = [n for n, v in pairs if isinstance(v, int | float) and not isinstance(v, bool)]
        metrics: dict[str, Any] = {}
        for name in dict.fromkeys(numbers):
            values = [float(answer[name]) for answer in answers if is_number(answer.get(name))]
            if len(values) < len(answers):
                log.warning(
                    "Round %s: %s of %s clients returned no finite number as %r; its summary "
                    "leaves them out.",
                    *(t, len(answers) - len(values), len(answers), name),
                )
            if values:
                metrics[name] = summary(values)
                lower = self._settings["lower_is_better"] and name == self._settings["metric"]
                if lower or name.lower().endswith("loss"):
                    metrics[name]["worst"] = -summary([-value for value in values])["worst"]
        if metrics:
            self.clients[t] = {self.evaluated: metrics}

    def evaluate(self, metrics: Callable[[Any], Mapping[str, Any]]) -> dict[str, Any]:
        """The metrics of the averages as "name/metric", and their `windows` as "name/window".

        The global random generators are left as they were.
        """
        if not self.seen:
            return {}
        with preserved():
            values = {name: metrics(self.model(name)) for name in self.names}
        windows = {f"{name}/window": window for name, window in self.windows.items()}
        return windows | {f"{name}/{key}": v for name in values for key, v in values[name].items()}

    def save(self) -> None:
        """Write everything that the next round depends on to the folder, if there is one."""
        if self._store is None or self._averages is None or self._layout is None:
            return
        tensors = {f"newest {name}": torch.from_numpy(a) for name, a in self._newest.items()}
        rings: dict[str, Ring] = {}
        content = {
            "identity": self._identity(),
            "extra": {"strategy": self._strategy.encode(tensors), "first_norm": self._first_norm},
            "arrays": {"newest": list(self._newest), "averaged": list(self._layout.slices)},
            "averages": self._averages.encode(tensors, rings),
        }
        # Numbered by models, because round numbers start again when a server is restarted.
        manifests.save(self._store, self.seen, tensors, rings, **content)

    def _identity(self) -> dict[str, Any]:
        """What must match for a state to be resumed."""
        # Averagers as text, without unset fields that version 0.1.0 did not have.
        averagers = {
            name: repr(averager).replace(", buckets=None", "")
            for name, averager in self.averagers.items()
        }
        classifier = list(self._settings["classifier"])
        return {"averagers": averagers, "classifier": classifier, "rounds": self._rounds}

    def _restore(self, store: Segments) -> None:
        """Restore the newest intact state in the folder, if there is any."""
        saved, wrong = manifests.find(store)
        if not saved:
            if wrong:
                raise RunError(f"No state in {store.folder} is intact: {'; '.join(wrong)}.")
            return
        identity, content, extra = saved[0].identity, saved[0].content, saved[0].extra
        self._rounds = identity.get("rounds") if self._rounds is None else self._rounds
        for key, asked in self._identity().items():
            if identity.get(key) != asked:
                raise UsageError(
                    f"{store.folder} contains averages with {key} = {identity.get(key)}, but got "
                    f"{asked}; use the same, or another folder."
                )

        def tensor(name: str) -> Tensor:
            return store.read(content["vectors"], name)

        names = content["arrays"]["newest"]
        self._newest = {name: np.array(tensor(f"newest {name}").numpy()) for name in names}
        self._lay_out(content["arrays"]["averaged"], self._newest, self._newest)
        assert self._averages is not None
        self._averages.load(content, store, tensor)
        self._first_norm = extra.get("first_norm", self._first_norm)
        if "strategy" in extra:
            self._strategy.decode(extra["strategy"], tensor)
        log.info("Averages resumed after %s models, from %s.", self.seen, store.folder)

    def close(self) -> None:
        """Release the folder for another server; this also happens when the process exits."""
        if self._store is not None:
            self._unlock()


def check_private_mean(strategy: Any, interface: Interface) -> bool:
    """Whether the strategy is private; raises unless its released models are means plus noise.

    The replies to a private strategy have no noise yet, so they are not looked at.  The difference
    of two released models is the mean step plus noise, if it is the plain mean that gets the noise.
    Flower's wrappers for differential privacy, which add noise, are known by their names.
    """
    known, rule = vars(interface.strategies), interface.aggregate
    wrappers = [known[name] for name in known if name.startswith(("DifferentialPrivacy", "DPFed"))]
    private = any(isinstance(layer, tuple(wrappers)) for layer in layers(strategy))
    means = [getattr(kind, rule) for kind in (*wrappers, known["FedAvg"])]
    for layer in layers(strategy) if private else ():
        check(
            getattr(type(layer), rule, None) in means,
            "window='auto' with differential privacy needs FedAvg's mean, so that it sees only "
            f"released models; {type(layer).__name__} aggregates in its own way. Use a fixed "
            "window, for example WIMA(window=100).",
        )
    return private


def _norm(w: Vector) -> float:
    return float(torch.linalg.vector_norm(w, dtype=torch.float64))  # float32 would overflow


def _is_averaged(name: str, array: np.ndarray[Any, Any]) -> bool:
    """Whether an array is averaged; if not, it keeps its newest value."""
    if array.dtype.kind in "iub":
        return False
    check(
        array.dtype.kind == "f" and array.dtype.itemsize <= 8,
        f"Array {name!r} is {array.dtype}; expected float16, float32, float64 or an integer.",
    )
    return True


Shapes: TypeAlias = Mapping[str, tuple[int, ...]]


def _check_same_arrays(t: int, expected: Shapes, got: Shapes) -> None:
    changes = [f"{name!r} is missing" for name in sorted(expected.keys() - got.keys())]
    changes += [f"{name!r} is new" for name in sorted(got.keys() - expected.keys())]
    for name in expected.keys() & got.keys():
        if got[name] != expected[name]:
            changes.append(f"{name!r} has shape {got[name]}, before it was {expected[name]}")
    if changes:
        raise RunError(
            f"Round {t}: the arrays of the model have changed ({', '.join(changes)}); models can "
            "only be averaged if all have the same arrays, of the same shapes."
        )


def layers(strategy: Any) -> Iterator[Any]:
    """The strategy and those that it wraps (in `strategy`), outermost first."""
    while hasattr(strategy, "__dict__"):
        yield strategy
        strategy = getattr(strategy, "strategy", None)


class StrategyState:
    """A strategy's own state between rounds, such as its momentum, which Flower does not save.

    Saved by the name of the attribute: arrays, lists and dicts of arrays, and numbers that have
    changed since `averaged` was called.  Numbers that have not are hyper-parameters: a restarted
    server uses those that it is given.  Strategies that this one wraps are included.

    A restarted server reads the state at once but restores it in `begin`, because Flower's older
    strategies return and reset some attributes before the first round.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = weakref.ref(strategy)  # weak, because the strategy holds this object
        names = [type(layer).__name__ for layer in layers(strategy)]
        self._name = "(".join(names) + ")" * (len(names) - 1)
        self._before = {path: value for path, value in self._attributes() if is_number(value)}
        self.done = 0  # the last round that was averaged
        self._offset: int | None = None  # rounds of earlier servers
        self.waiting: dict[str, Any] | None = None  # values to restore, by path

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """Yields the path and the value of every attribute."""
        for depth, layer in enumerate(layers(self._strategy())):
            for name, value in vars(layer).items():
                number = isinstance(value, np.number)
                yield "strategy." * depth + name, value.item() if number else value

    def encode(self, tensors: dict[str, Tensor]) -> Json:
        """The state as JSON; its arrays are added to the tensors."""
        values: dict[str, Any] = {}
        for path, value in self._attributes():
            kind, arrays = _arrays_in(value)
            if arrays:
                values[path] = {kind: list(arrays)}
                for name, array in arrays.items():
                    tensors[f"strategy {path} {name}"] = torch.from_numpy(np.array(array))
            elif is_number(value) and value != self._before.get(path):
                values[path] = {"number": value}
        return {"name": self._name, "round": self.done, "values": values}

    def decode(self, saved: Json, tensor: Callable[[str], Tensor]) -> None:
        """Read what `encode` wrote."""
        if saved["name"] != self._name:
            log.warning(
                "The saved strategy is %s: %s starts without its state.", saved["name"], self._name
            )
            return
        if saved.get("changed"):
            raise UsageError(
                f"The saved state of {self._name} ({', '.join(saved['changed'])}) was written by "
                "an earlier version of wima, in a form that is no longer read. Finish the run with "
                "that version, or start in another folder from the newest model, which that "
                "version returns as averaging.models()['plain']; its average begins anew."
            )
        self.waiting, self.done = {}, saved["round"]
        for path, content in saved.get("values", {}).items():
            ((kind, names),) = content.items()
            if kind == "number":
                self.waiting[path] = names
                continue
            arrays = {n: np.array(tensor(f"strategy {path} {n}").numpy()) for n in names}
            listed = list(arrays.values())
            self.waiting[path] = {"dict": arrays, "list": listed, "ndarray": listed[0]}[kind]

    def begin(self, start: Arrays, newest: Arrays) -> None:
        """Restore what was read, if the run starts from the newest saved model."""
        values, self.waiting = self.waiting or {}, None
        same = start.keys() == newest.keys()
        if not same or any(not np.array_equal(start[name], newest[name]) for name in newest):
            self.done = 0
            log.warning(
                "The run does not start from the newest model, averaging.models()['plain']: "
                "%s starts without its saved state.",
                self._name,
            )
            return
        owners = list(layers(self._strategy()))
        for path, value in values.items():
            setattr(owners[path.count(".")], path.rpartition(".")[2], value)

    def round(self, t: int) -> int:
        """The number of round t across restarts, after which Flower counts from 1 again."""
        if self._offset is None:
            self._offset = self.done if t <= self.done else 0
        return t + self._offset


def _arrays_in(value: Any) -> tuple[str, dict[Any, Any]]:
    """The arrays in an array, list or dict by name, and which it is; none in anything else."""
    if isinstance(value, dict):
        kind, arrays = "dict", value
    elif isinstance(value, list):
        kind, arrays = "list", dict(enumerate(value))
    else:
        kind, arrays = "ndarray", {"": value}
    return kind, arrays if all(map(_is_plain, arrays.values())) else {}


def _is_plain(array: Any) -> bool:
    """Whether it is an array of real numbers that can be saved; NumPy's scalars are, too."""
    if not isinstance(array, np.ndarray | np.number):
        return False
    return array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 and array.dtype.isnative

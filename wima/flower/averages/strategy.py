"""The average on any of Flower's strategies: `averaged(FedAvg(), WIMA(window=100))`."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, Unpack

from flwr.app import Array, ArrayRecord, Message, MetricRecord
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import Result, Strategy

from wima.averaging import Averager
from wima.core.errors import check
from wima.flower.arrays import Arrays, log, to_numpy
from wima.flower.averages.state import Averaging, AveragingOptions, Interface, layers
from wima.flower.averages.steps import overhear

S = TypeVar("S", bound=Strategy)
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


def subclassed(strategy: Any, mixin: type, averaging: Averaging) -> None:
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


def averaged(
    strategy: S, averagers: Averager | Sequence[Averager], **options: Unpack[AveragingOptions]
) -> S:
    """Add averages of its global models to a strategy.

    Training is that of the plain model, bit for bit.  `start` evaluates both models, and its result
    has both: `result.models`, by name; `result.arrays` is the served one.  Clients evaluate the
    average; `result.clients` is the distribution of their metrics.  `strategy.averaging` has the
    models at any time.  See `AveragingOptions`.
    WIMA("auto") chooses its window by the clients' mean step, which is computed from the replies
    before the strategy's own rule; `strategy.averaging.windows` has the current choice.

    The instance is modified in place and returned.

    Differential privacy goes inside: `averaged(DifferentialPrivacy...(...), ...)` only sees models
    with noise.  The other way round, averages would be of models without it: so rounds are refused
    unless they are those of the strategy's own `start`.  A loop of your own calls
    `strategy.averaging.begin(initial_arrays)` first.
    """
    check(
        isinstance(strategy, Strategy),
        f"averaged() takes an instance of flwr.serverapp.strategy.Strategy, got {strategy!r:.80}; "
        "for flwr.server.strategy.Strategy, use averaged_legacy().",
    )
    subclassed(strategy, _Averaged, Averaging(strategy, averagers, INTERFACE, options))
    return strategy


def _pack(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _unpack(record: ArrayRecord) -> Arrays:
    return {name: to_numpy(array) for name, array in record.items()}


INTERFACE = Interface(_pack, _unpack, strategies, "aggregate_train")


def _begun(averaging: Averaging) -> Averaging:
    """Raise if `start` was not called: then another strategy's was, which wraps this one."""
    check(
        averaging.begun,
        "averaged(...) must be the outermost strategy, but another one calls it. If that adds "
        "noise, averages would be made of models without it: write averaged(DifferentialPrivacy..."
        "(FedAvg()), ...). A loop of your own, without `start`, calls "
        "strategy.averaging.begin(initial_arrays) first.",
    )
    return averaging


def _innermost(strategy: Strategy, name: str) -> Any:
    """The attribute of the innermost strategy that has it; None if none does."""
    values = [getattr(layer, name) for layer in layers(strategy) if hasattr(layer, name)]
    return values[-1] if values else None


_Next: Any = Strategy  # in the method resolution order, the instance's own class comes next


class _Averaged(_Next):  # type: ignore[misc]
    """The methods that `averaged` puts before those of a strategy's own class."""

    averaging: Averaging

    def summary(self) -> None:
        averaging = self.averaging
        log.info("\t├──> Averages: %s; served: %s", ", ".join(averaging.names), averaging.served)
        super().summary()

    def start(self, *args: Any, **kwargs: Any) -> Any:
        inner, averaging = super().start, self.averaging
        averaging.clients = {}
        parameters = inspect.signature(inner).parameters
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        settings = defaults | dict(zip(parameters, args, strict=False)) | kwargs
        if "initial_arrays" in settings:
            averaging.begin(settings["initial_arrays"], settings.get("num_rounds"))
        averaging.begun = True
        if settings.get("evaluate_fn") is not None:
            settings["evaluate_fn"] = self._evaluates_all(settings["evaluate_fn"])
        try:
            result = inner(**settings)
        finally:
            averaging.begun = False  # the next rounds may be a wrapper's
        averaging.save()
        if isinstance(result, Result):
            models, served = averaging.models(), averaging.served
            vars(result).update(models=models, served=served, clients=averaging.clients)
            if served != "plain":
                result.arrays = models[served]
            log.info("result.arrays is the model %r; result.models has %s.", served, [*models])
            if result.evaluate_metrics_clientapp:
                log.info("Clients evaluated the model %r.", averaging.evaluated)
        return result

    def _evaluates_all(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        def evaluate(t: int, arrays: ArrayRecord) -> MetricRecord | None:
            plain = evaluate_fn(t, arrays)
            averages = self.averaging.evaluate(lambda average: evaluate_fn(t, average) or {})
            metrics = {**(plain or {}), **averages}
            return MetricRecord(metrics) if metrics else plain

        return evaluate

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        _begun(self.averaging).send(arrays)
        return super().configure_train(self.averaging.round(server_round), arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        def read(reply: Message) -> tuple[ArrayRecord, Any] | None:
            """A client's model and its weight, as FedAvg would use them.

            If a strategy does not say how it weights clients, all weights are 1.
            """
            if reply.has_error():
                return None
            models = {n: r for n, r in reply.content.items() if isinstance(r, ArrayRecord)}
            metrics = [r for r in reply.content.values() if isinstance(r, MetricRecord)]
            several = len(models) > 1
            name = _innermost(self, "arrayrecord_key") if several else next(iter(models))
            key = _innermost(self, "weighted_by_key")
            return models[name], 1.0 if key is None else metrics[0][key]

        t = _begun(self.averaging).round(server_round)
        arrays, metrics = super().aggregate_train(t, self.averaging.listen(replies, read))
        if arrays:  # empty if all clients failed
            self.averaging.add(t, arrays)
        return arrays, metrics

    def configure_evaluate(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        t, evaluated = self.averaging.round(server_round), self.averaging.for_clients(arrays)
        return super().configure_evaluate(t, evaluated, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        answers: list[dict[str, Any]] = []
        weights = {"num-examples", _innermost(self, "weighted_by_key")}

        def take(reply: Message) -> None:
            if not reply.has_error():
                records = reply.content.metric_records.values()
                answers.append({n: v for r in records for n, v in r.items() if n not in weights})

        t = self.averaging.round(server_round)
        metrics = super().aggregate_evaluate(t, overhear(replies, take))
        self.averaging.summarize(server_round, answers)
        return metrics

"""The average on any of Flower's strategies: `averaged(FedAvg(), WIMA(window=100))`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid, strategy as strategies
from flwr.serverapp.strategy import (
    Result,
    Strategy,
)

from wima.averaging import Averager
from wima.core.errors import UsageError, check
from wima.flower.arrays import to_numpy
from wima.flower.averages import base
from wima.flower.averages.models import Arrays, log
from wima.flower.averages.privacy import Privacy, layers
from wima.flower.averages.steps import overhear

S = TypeVar("S", bound=Strategy)
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]
PRIVACY = Privacy.of(strategies, "aggregate_train")


def averaged(
    strategy: S, averagers: Averager | Sequence[Averager], **options: Unpack[base.AveragingOptions]
) -> S:
    """Add averages of its global models to a strategy.

    Training is that of the plain model, bit for bit.  `start` evaluates both models, and its result
    has both: `result.models`, by name; `result.arrays` is the served one.  Clients evaluate the
    average; `result.clients` is the distribution of their metrics.  `strategy.averaging` has the
    models at any time.  See `AveragingOptions`.
    WIMA("auto") chooses its window by the clients' mean step, which is computed from the replies
    before the strategy's own rule; `strategy.averaging.windows` has the current choice.

    The instance is modified in place and returned.

    Examples:
        >>> import numpy as np
        >>> from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
        >>> from flwr.clientapp import ClientApp
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from wima import WIMA
        >>> from wima.flower import LocalGrid, averaged
        >>> app = ClientApp()
        >>> @app.train()
        ... def train(message, context):  # every client adds 1 to the model
        ...     w = message.content["arrays"]["w"].numpy() + 1
        ...     content = {"arrays": ArrayRecord({"w": Array(w)})}
        ...     content["metrics"] = MetricRecord({"num-examples": 1})
        ...     return Message(RecordDict(content), reply_to=message)
        >>> strategy = averaged(FedAvg(fraction_evaluate=0.0), WIMA(window=3))
        >>> with LocalGrid(app, nodes=2, workers=1) as grid:
        ...     result = strategy.start(grid, ArrayRecord({"w": Array(np.zeros(1))}), num_rounds=4)
        >>> {name: model["w"].numpy().tolist() for name, model in result.models.items()}
        {'plain': [4.0], 'wima3': [3.0]}
    """
    check(
        isinstance(strategy, Strategy),
        f"averaged() takes an instance of flwr.serverapp.strategy.Strategy, got {strategy!r:.80}; "
        "for flwr.server.strategy.Strategy, use averaged_legacy().",
    )
    interface = base.Interface(_pack, _unpack, PRIVACY)
    averaging = base.Averaging(strategy, averagers, interface, options)
    base.subclassed(strategy, _Averaged, averaging)
    return strategy


def _pack(arrays: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def _unpack(record: ArrayRecord) -> Arrays:
    return {name: to_numpy(array) for name, array in record.items()}  # copies


def _returned(strategy: Strategy, reply: Message) -> tuple[ArrayRecord, float] | None:
    """A client's model and its weight, as FedAvg would use them; None if the client failed.

    If a strategy does not say how it weights clients, all weights are 1.
    """
    if reply.has_error():
        return None
    models = {n: r for n, r in reply.content.items() if isinstance(r, ArrayRecord)}
    metrics = [r for r in reply.content.values() if isinstance(r, MetricRecord)]
    name = _said(strategy, "arrayrecord_key") if len(models) > 1 else next(iter(models))
    key = _said(strategy, "weighted_by_key")
    weight: Any = 1.0 if key is None else metrics[0][key]
    return models[name], weight


def _metrics(strategy: Strategy, reply: Message) -> Iterator[dict[str, Any]]:
    """Yields the metrics of a client without its weight, unless the client failed."""
    if not reply.has_error():
        weights = {"num-examples", _said(strategy, "weighted_by_key")}
        records = reply.content.metric_records.values()
        yield {n: v for record in records for n, v in record.items() if n not in weights}


def _said(strategy: Strategy, name: str) -> Any:
    """The attribute of the innermost strategy that has it; None if none does."""
    found = [getattr(layer, name) for layer in layers(strategy) if hasattr(layer, name)]
    return found[-1] if found else None


# In the method resolution order, the instance's own class comes next; FedAvg stands in for it.
if TYPE_CHECKING:
    from flwr.serverapp.strategy import FedAvg as _Next
else:
    _Next = Strategy


class _Averaged(_Next):
    """The methods that `averaged` puts before those of a strategy's own class."""

    averaging: base.Averaging[ArrayRecord]

    def summary(self) -> None:
        PRIVACY.refuse_outside(self)
        averaging = self.averaging
        log.info("\t├──> Averages: %s; served: %s", ", ".join(averaging.names), averaging.served)
        super().summary()

    def start(self, *args: Any, **kwargs: Any) -> Result:
        inner, self.averaging.clients = super().start, {}
        parameters = inspect.signature(inner).parameters
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        given = defaults | dict(zip(parameters, args, strict=False)) | kwargs
        if "initial_arrays" in given:
            self.averaging.begin(given["initial_arrays"], given.get("num_rounds"))
        evaluate_fn = given.get("evaluate_fn")
        if evaluate_fn is not None:
            given["evaluate_fn"] = self._both(evaluate_fn)
        elif self.averaging.serving.serve == "better":
            raise UsageError(
                "serve='better' compares the models by the server's evaluation: pass `start` an "
                "evaluate_fn, or choose serve='plain' or 'average'."
            )
        return self._with_models(inner(**given))

    def _both(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            plain = evaluate_fn(server_round, arrays)
            found = dict(plain or {})
            found |= self.averaging.evaluate(
                found, lambda average: dict(evaluate_fn(server_round, average) or {})
            )
            return MetricRecord(found) if found else plain

        return evaluate

    def _with_models(self, result: Result) -> Result:
        """The result of the class's own `start`, with all models."""
        self.averaging.save()
        models, served = self.averaging.models(), self.averaging.served
        if isinstance(result, Result):
            clients = self.averaging.clients
            vars(result).update(models=models, served=served, clients=clients)
            if served != "plain":
                result.arrays = models[served]
            log.info("result.arrays is the model %r; result.models has %s.", served, [*models])
            if result.evaluate_metrics_clientapp:
                log.info("Clients evaluated the model %r.", self.averaging.evaluated)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        PRIVACY.refuse_outside(self)
        self.averaging.send(arrays)
        return super().configure_train(self.averaging.round(server_round), arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        t = self.averaging.round(server_round)
        replies = self.averaging.listen(replies, partial(_returned, self))
        arrays, metrics = super().aggregate_train(t, replies)
        if arrays:  # empty if all clients failed
            self.averaging.add(t, arrays)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        t, evaluated = self.averaging.round(server_round), self.averaging.for_clients(arrays)
        return super().configure_evaluate(t, evaluated, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        answers: list[dict[str, Any]] = []
        replies = overhear(replies, lambda reply: answers.extend(_metrics(self, reply)))
        found = super().aggregate_evaluate(self.averaging.round(server_round), replies)
        self.averaging.answered(server_round, answers)
        return found

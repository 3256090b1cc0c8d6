"""The average on Flower's older strategies, `flwr.server.strategy`.

Secure aggregation (SecAgg+) works only with these.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar, Unpack

# The older interface exists only in flwr.server and flwr.common.
from flwr.common import EvaluateRes, FitRes, Parameters, ndarrays_to_parameters
from flwr.server import strategy as strategies
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import Strategy

from wima.averaging import Averager
from wima.core.errors import check
from wima.flower.arrays import Arrays, from_bytes
from wima.flower.averages.state import Averaging, AveragingOptions, Interface
from wima.flower.averages.strategy import subclassed

S = TypeVar("S", bound=Strategy)
Fitted: TypeAlias = tuple[ClientProxy, FitRes]
Evaluated: TypeAlias = tuple[ClientProxy, EvaluateRes]


def averaged_legacy(
    strategy: S, averagers: Averager | Sequence[Averager], **options: Unpack[AveragingOptions]
) -> S:
    """Add averages of its global models to a strategy; see `averaged`.

    Arrays have no names here: they are called "0", "1", ... in order.  `evaluate` reports both
    models; the metrics of the average are named "wima100/loss" and so on.
    `strategy.averaging.models()` returns the models, and `strategy.averaging.served` is the name of
    the one to serve.

    Differential privacy goes inside, as in `averaged`.  The other way round, the model that follows
    a round has noise that the average has not, and the run ends.
    """
    check(
        isinstance(strategy, Strategy),
        f"averaged_legacy() takes an instance of flwr.server.strategy.Strategy, got "
        f"{strategy!r:.80}; for flwr.serverapp.strategy.Strategy, use averaged().",
    )
    subclassed(strategy, _Averaged, Averaging(strategy, averagers, INTERFACE, options))
    return strategy


def _pack(arrays: Arrays) -> Parameters:
    return ndarrays_to_parameters(list(arrays.values()))


def _unpack(parameters: Parameters) -> Arrays:
    return {str(k): array for k, array in enumerate(map(from_bytes, parameters.tensors))}


INTERFACE = Interface(_pack, _unpack, strategies, "aggregate_fit")
_Next: Any = Strategy  # in the method resolution order, the instance's own class comes next


class _Averaged(_Next):  # type: ignore[misc]
    """The methods that `averaged_legacy` puts before those of a strategy's own class."""

    averaging: Averaging

    def _unchanged(self, t: int, parameters: Parameters) -> None:
        """Raise if the model after Flower's round t is another one than was returned."""
        returned = self.averaging.returned.get(t)
        check(
            returned is None or returned.tensors == parameters.tensors,
            "averaged_legacy(...) must be the outermost strategy, but its model was changed by "
            "another one. If that adds noise, averages are made of models without it: write "
            "averaged_legacy(DifferentialPrivacy...(FedAvg()), ...), not "
            "DifferentialPrivacy...(averaged_legacy(...)).",
        )

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:
        self._unchanged(server_round - 1, parameters)
        self.averaging.send(parameters)
        t = self.averaging.round(server_round)
        return super().configure_fit(t, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results: list[Fitted], failures: Any) -> Any:
        t = self.averaging.round(server_round)
        # With SecAgg+, every client returns the aggregate.
        self.averaging.listen(
            results, lambda fitted: (fitted[1].parameters, fitted[1].num_examples)
        )
        parameters, metrics = super().aggregate_fit(t, results, failures)
        if parameters is not None and parameters.tensors:
            self.averaging.returned = {server_round: parameters}
            self.averaging.add(t, parameters)
        return parameters, metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: Any
    ) -> Any:
        self._unchanged(server_round, parameters)
        t, evaluated = self.averaging.round(server_round), self.averaging.for_clients(parameters)
        return super().configure_evaluate(t, evaluated, client_manager)

    def aggregate_evaluate(self, server_round: int, results: list[Evaluated], failures: Any) -> Any:
        found = super().aggregate_evaluate(self.averaging.round(server_round), results, failures)
        answers = [{"loss": answer.loss, **answer.metrics} for _, answer in results]
        self.averaging.summarize(server_round, answers)
        return found

    def evaluate(self, server_round: int, parameters: Parameters) -> Any:
        self._unchanged(server_round, parameters)
        inner = super().evaluate
        plain = inner(server_round, parameters)
        if plain is None:
            return None

        def metrics(average: Parameters) -> dict[str, Any]:
            result = inner(server_round, average)
            return {} if result is None else {"loss": result[0], **result[1]}

        return plain[0], {**plain[1], **self.averaging.evaluate(metrics)}

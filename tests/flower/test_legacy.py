"""The average on Flower's older strategies, also under secure aggregation."""

from __future__ import annotations

import tests.helpers.flower_toys  # noqa: F401  (switches telemetry off)

# isort: split
import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    DPFedAvgFixed,
    FedAdam,
    FedAvg,
    FedAvgM,
)
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

from tests.helpers.flower_legacy import INITIAL, NODES, SIZES, Client, client_fn, update
from tests.helpers.listener import Listener, heard
from wima import WIMA, UsageError
from wima.averaging import Averages
from wima.core.statistics import summary
from wima.flower import LocalGrid, averaged_legacy

ROUNDS, W = 4, 2


class Listening(LocalGrid):
    """Keeps all that reaches the server."""

    def __init__(self, *args, **settings) -> None:
        super().__init__(*args, **settings)
        self.heard: list[Message] = []

    def pull_messages(self, message_ids):
        replies = super().pull_messages(message_ids)
        self.heard += replies
        return replies


def loss(parameters) -> float:
    return float(sum((a.astype(np.float64) ** 2).sum() for a in parameters))


def play(strategy, *, mods=(), fit=None):
    """A run in process; the grid, with what was heard, and Flower's history."""
    with Listening(ClientApp(client_fn, mods=list(mods)), NODES, workers=1) as grid:
        own = Context(grid.run.run_id, 1, {}, RecordDict(), {})
        context = LegacyContext(own, ServerConfig(ROUNDS), strategy)
        DefaultWorkflow(fit_workflow=fit)(grid, context)
    return grid, context.history


def settings(evaluated: list | None = None) -> dict:
    def evaluate_fn(server_round, arrays, config):
        if evaluated is not None:
            evaluated.append((server_round, [a.copy() for a in arrays]))
        return loss(arrays), {"size": float(len(arrays))}

    return {
        "initial_parameters": ndarrays_to_parameters(INITIAL),
        "evaluate_fn": evaluate_fn,
        "min_available_clients": NODES,
    }


STRATEGIES = {
    "FedAvg": FedAvg,
    "FedAvgM": lambda **s: FedAvgM(server_momentum=0.9, **s),
    "FedAdam": FedAdam,
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_is_bit_identical_and_both_models_are_evaluated(name):
    before, after = [], []
    play(STRATEGIES[name](**settings(before)))
    strategy = averaged_legacy(STRATEGIES[name](**settings(after)), WIMA(W))
    _, history = play(strategy)
    plain = [arrays for t, arrays in before]
    pairs = after[1:]  # after the initial model
    assert [t for t, _ in pairs] == [t for t in range(1, ROUNDS + 1) for _ in range(2)]
    for t in range(1, ROUNDS + 1):
        for a, b in zip(pairs[2 * t - 2][1], plain[t], strict=True):
            assert a.tobytes() == b.tobytes()
        window = plain[max(1, t - W + 1) : t + 1]
        expected = [np.mean([m[k].astype(np.float64) for m in window], axis=0) for k in range(2)]
        for a, b in zip(pairs[2 * t - 1][1], expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        reported = dict(history.metrics_centralized[f"wima{W}/loss"])
        assert reported[t] == loss(pairs[2 * t - 1][1])
        assert dict(history.losses_centralized)[t] == loss(plain[t])
    assert isinstance(strategy, FedAvg)
    assert set(strategy.averaging.models()) == {"plain", f"wima{W}"}


def test_clients_evaluate_the_average():
    strategy = averaged_legacy(FedAvg(**settings()), WIMA(W))
    _, history = play(strategy)
    average = parameters_to_ndarrays(strategy.averaging.model(f"wima{W}"))
    assert dict(history.losses_distributed)[ROUNDS] == pytest.approx(np.abs(average[0]).sum())


def test_the_distribution_over_clients_is_of_what_they_return(monkeypatch):
    def evaluate(self, parameters, config):
        found = {"accuracy": self.partition / NODES, "note": "fine", "done": True}
        return float(np.abs(parameters[0]).sum()) + self.partition, 1, found

    monkeypatch.setattr(Client, "evaluate", evaluate)
    strategy = averaged_legacy(FedAvg(**settings()), WIMA(W))
    play(strategy)
    average = parameters_to_ndarrays(strategy.averaging.model(f"wima{W}"))
    losses = [float(np.abs(average[0]).sum()) + k for k in range(NODES)]
    clients = strategy.averaging.clients
    assert list(clients) == list(range(1, ROUNDS + 1))
    found = clients[ROUNDS][f"wima{W}"]
    assert set(found) == {"loss", "accuracy"}
    assert found["accuracy"] == summary([k / NODES for k in range(NODES)])
    assert found["loss"]["worst"] == pytest.approx(max(losses))
    assert found["loss"]["mean"] == pytest.approx(np.mean(losses))


def masked_vectors(grid: Listening) -> list[tuple[int, list[np.ndarray]]]:
    """What clients sent as their update, with their node."""
    from flwr.common import bytes_to_ndarray
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

    found = []
    for reply in grid.heard:
        records = reply.content.config_records
        sent = records.get(RECORD_KEY_CONFIGS, {})
        if Key.MASKED_PARAMETERS in sent:
            arrays = [bytes_to_ndarray(b) for b in sent[Key.MASKED_PARAMETERS]]
            found.append((reply.metadata.src_node_id, arrays))
    return found


def test_with_secagg_the_server_averages_models_and_sees_no_update():
    evaluated: list = []
    strategy = averaged_legacy(FedAvg(**settings(evaluated)), WIMA(W))
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=100.0)
    grid, history = play(strategy, mods=[secaggplus_mod], fit=secure)
    plain = [INITIAL, *(a for t, a in evaluated[1::2])]
    assert len(plain) == ROUNDS + 1
    partitions = {n: grid.node_context(n).node_config["partition-id"] for n in grid.get_node_ids()}
    sent = masked_vectors(grid)
    assert len(sent) == ROUNDS * NODES
    for number, (node, arrays) in enumerate(sent):
        before = plain[number // NODES]
        true = update(partitions[node], before)
        ratio = SIZES[partitions[node]] / 100.0
        for masked, own in zip(arrays[1:], true, strict=True):  # the first one is the weight
            unmasked = (ratio * own + 8.0) / 16.0 * 2**22  # how SecAgg+ makes integers
            assert not np.isclose(masked % 2**32, unmasked, atol=2).any()
    assert not any(r.content.array_records.get("fitres.parameters") for r in grid.heard)
    for t in range(1, ROUNDS + 1):
        updates = [update(k, plain[t - 1]) for k in range(NODES)]
        for k, array in enumerate(plain[t]):
            mean = np.average([u[k] for u in updates], axis=0, weights=SIZES)
            np.testing.assert_allclose(array, mean, atol=1e-4)
    average = parameters_to_ndarrays(strategy.averaging.model(f"wima{W}"))
    for k, array in enumerate(average):
        np.testing.assert_allclose(array, (plain[-1][k] + plain[-2][k]) / 2, rtol=1e-6)
    assert dict(history.metrics_centralized[f"wima{W}/loss"])[ROUNDS] == loss(average)


def test_the_average_of_private_models_is_allowed():
    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(**settings()), 1e-3, 1e3, NODES)
    strategy = averaged_legacy(private, WIMA(W))
    play(strategy)
    assert strategy.averaging.seen == ROUNDS


@pytest.mark.parametrize("evaluated", [True, False])
@pytest.mark.parametrize(
    "private",
    [DifferentialPrivacyServerSideFixedClipping, DifferentialPrivacyClientSideFixedClipping],
    ids=["server-side", "client-side"],
)
def test_an_average_inside_a_private_strategy_ends_the_run(private, evaluated):
    """In the first round, before anybody sees the average."""
    options = {"evaluate_fn": None, "fraction_evaluate": 0.0}
    inside = FedAvg(**settings() | ({} if evaluated else options))
    strategy = averaged_legacy(inside, WIMA(W))
    with pytest.raises(
        UsageError, match=r"write averaged_legacy\(DifferentialPrivacy\.\.\.\(FedAvg"
    ):
        play(private(strategy, 1e-3, 1e3, NODES))
    assert strategy.averaging.seen == 1 and not strategy.averaging.clients


class Nobody(SimpleClientManager):
    """There is no client to wait for."""

    def sample(self, *args, **settings):
        return []


def fit(strategy, parameters, rounds: int, first: int = 1):
    """Rounds as Flower counts them, with all clients."""
    for t in range(first, first + rounds):
        strategy.configure_fit(t, parameters, Nobody())
        before = parameters_to_ndarrays(parameters)
        sent = [ndarrays_to_parameters(update(k, before)) for k in range(NODES)]
        ok = Status(Code.OK, "")
        results = [(None, FitRes(ok, p, n, {})) for p, n in zip(sent, SIZES, strict=True)]
        parameters, _ = strategy.aggregate_fit(t, results, [])
    return parameters


@pytest.mark.parametrize("name", ["FedAvgM", "FedAdam"])
def test_a_restarted_server_goes_on_with_the_memory_of_its_strategy(name, tmp_path):
    def make(start, **options):
        given = {**settings(), "initial_parameters": start}
        return averaged_legacy(STRATEGIES[name](**given), WIMA(W), **options)

    start = ndarrays_to_parameters(INITIAL)
    whole, first = make(start), make(start, folder=tmp_path)
    fit(whole, start, 6)
    newest = fit(first, start, 3)
    first.averaging.close()
    again = make(newest, folder=tmp_path)
    fit(again, again.averaging.model("plain"), 3)
    for model in ("plain", f"wima{W}"):
        assert again.averaging.model(model).tensors == whole.averaging.model(model).tensors


def flat(parameters) -> np.ndarray:
    return np.concatenate([a.ravel() for a in parameters]).astype(np.float64)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_window_is_chosen_by_the_clients_mean_step_before_the_strategys_rule(name):
    strategy = averaged_legacy(STRATEGIES[name](**settings()), [WIMA("auto"), Listener()])
    parameters = ndarrays_to_parameters(INITIAL)
    watch = Averages({"wima-auto": WIMA("auto")}, torch.from_numpy(flat(INITIAL)).float())
    for t in range(1, 13):
        before = parameters_to_ndarrays(parameters)
        parameters = fit(strategy, parameters, 1, first=t)
        clients = [flat(update(k, before)) for k in range(NODES)]
        step = flat(before) - np.average(clients, axis=0, weights=SIZES)
        np.testing.assert_allclose(heard(strategy)[-1], step, rtol=1e-5, atol=1e-6)
        w = flat(parameters_to_ndarrays(parameters))
        watch.update(torch.from_numpy(w).float(), torch.from_numpy(step).float())
        assert strategy.averaging.windows == watch.used()


def test_with_secagg_a_window_is_chosen_by_the_sum_of_a_round():
    evaluated: list = []
    strategy = averaged_legacy(FedAvg(**settings(evaluated)), [Listener(), WIMA("auto")])
    secure = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=100.0)
    _, history = play(strategy, mods=[secaggplus_mod], fit=secure)
    models = [INITIAL, *(arrays for _, arrays in evaluated[1::3])]  # beside two averages
    assert len(heard(strategy)) == ROUNDS
    for t, step in enumerate(heard(strategy)):
        np.testing.assert_allclose(step, flat(models[t]) - flat(models[t + 1]), atol=1e-6)
    reported = dict(history.metrics_centralized["wima-auto/window"])
    assert reported[ROUNDS] == strategy.averaging.windows["wima-auto"]


@pytest.mark.parametrize(
    "private",
    [
        lambda s: DifferentialPrivacyServerSideFixedClipping(s, 1e-3, 1e3, NODES),
        lambda s: DPFedAvgFixed(s, NODES, 1e3, 1e-3),
    ],
    ids=["fixed-clipping", "dpfedavg"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_with_privacy_only_released_models_are_looked_at(private):
    strategy = averaged_legacy(private(FedAvg(**settings())), Listener())
    parameters = ndarrays_to_parameters(INITIAL)
    for t in range(1, 5):
        before = parameters_to_ndarrays(parameters)
        parameters = fit(strategy, parameters, 1, first=t)
        released = flat(before) - flat(parameters_to_ndarrays(parameters))
        np.testing.assert_allclose(heard(strategy)[-1], released, atol=1e-6)
        clients = [flat(update(k, before)) for k in range(NODES)]
        assert not np.allclose(released, flat(before) - np.mean(clients, axis=0), atol=1e-3)
    with pytest.raises(UsageError, match="FedAdam aggregates in its own way"):
        averaged_legacy(private(FedAdam(**settings())), WIMA("auto"))


def test_a_strategy_of_the_new_interface_is_refused():
    from flwr.serverapp.strategy import FedAvg as NewFedAvg

    with pytest.raises(UsageError, match=r"use averaged\(\)"):
        averaged_legacy(NewFedAvg(), WIMA(W))

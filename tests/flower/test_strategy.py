"""The average on Flower's strategies watches and never steers."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    Result,
)

from tests.helpers.flower_toys import NODES, grid, initial, metrics, numpy, pulling, record, same
from wima import EMA, LAWA, SWA, WIMA, RunError, UsageError
from wima.flower import averaged

ROUNDS, W = 6, 3


class OwnStart(FedAvg):
    """A strategy with a `start` of its own, and another signature."""

    def start(self, grid, initial_arrays, num_rounds=3, *, greeting="", **others):
        self.greeting = greeting
        return super().start(grid, initial_arrays, num_rounds, **others)


STRATEGIES = {
    "FedAvg": FedAvg,
    "FedAvgM": lambda **s: FedAvgM(server_momentum=0.9, server_learning_rate=0.5, **s),
    "FedAdam": lambda **s: FedAdam(eta=0.1, beta_1=0.9, beta_2=0.99, **s),
    "FedYogi": lambda **s: FedYogi(eta=0.1, beta_1=0.9, beta_2=0.99, **s),
    "FedProx": lambda **s: FedProx(proximal_mu=0.1, **s),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": lambda **s: FedTrimmedAvg(beta=0.25, **s),
    "Krum": lambda **s: Krum(num_malicious_nodes=1, **s),
    "OwnStart": OwnStart,
}


def play(strategy, app=None, *, evaluate=metrics, rounds=ROUNDS, start=None, **options):
    """A run; the result, and the models that the server evaluated, by round in order of calls."""
    calls: dict[int, list[ArrayRecord]] = {}

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        random.random(), np.random.random(), torch.rand(1)  # as loaders of data do
        calls.setdefault(server_round, []).append(record(numpy(arrays)))
        return evaluate(arrays) if evaluate else None

    options.setdefault("evaluate_fn", evaluate_fn)
    with grid(app) as nodes:
        return strategy.start(nodes, start or initial(), rounds, **options), calls


def mean(records: list[ArrayRecord]) -> ArrayRecord:
    """The mean of floating arrays, in float64; integers of the newest."""
    newest = numpy(records[-1])
    arrays = {
        name: np.mean([r[name].numpy().astype(np.float64) for r in records], axis=0)
        for name in ("w", "bias")
    }
    return record({n: arrays.get(n, a).astype(a.dtype) for n, a in newest.items()})


@pytest.mark.parametrize("name", STRATEGIES)
def test_training_is_bit_identical_and_the_average_is_that_of_the_last_models(name):
    settings = {"fraction_train": 0.7, "fraction_evaluate": 0.4}
    plain, before = play(STRATEGIES[name](**settings))
    strategy = averaged(STRATEGIES[name](**settings), WIMA(W))
    result, after = play(strategy)
    models = [after[t][0] for t in range(1, ROUNDS + 1)]
    for t in range(ROUNDS + 1):
        assert same(after[t][0], before[t][0])
        assert after[t][0].keys() == initial().keys()
    for t in range(1, ROUNDS + 1):
        expected = mean(models[max(0, t - W) : t])
        for key, array in numpy(after[t][1]).items():  # float64 sums may differ in the last bit
            np.testing.assert_allclose(array, expected[key].numpy(), rtol=1e-14)
        reported = result.evaluate_metrics_serverapp[t]
        for key, value in metrics(expected).items():
            assert reported[key] == metrics(models[t - 1])[key]
            assert reported[f"wima{W}/{key}"] == pytest.approx(value, rel=1e-12)
        assert {k: v for k, v in reported.items() if "/" not in k} == (
            plain.evaluate_metrics_serverapp[t]
        )
    assert result.train_metrics_clientapp == plain.train_metrics_clientapp
    assert same(result.arrays, plain.arrays)


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_strategy_stays_what_it_is(name):
    strategy = STRATEGIES[name](min_train_nodes=4)
    own, fields = type(strategy), dict(vars(strategy))
    same_object = averaged(strategy, WIMA(W))
    assert same_object is strategy
    assert isinstance(strategy, own) and isinstance(strategy, FedAvg)
    assert {k: v for k, v in vars(strategy).items() if k != "averaging"} == fields
    assert type(strategy).__name__ == f"Averaged{own.__name__}"


def test_the_result_holds_both_models():
    result, calls = play(averaged(FedAvg(), WIMA(W)))
    assert isinstance(result, Result) and result.served == "plain"
    assert list(result.models) == ["plain", f"wima{W}"]
    assert same(result.models["plain"], calls[ROUNDS][0]) and same(result.arrays, calls[ROUNDS][0])
    assert same(result.models[f"wima{W}"], calls[ROUNDS][1])


def test_a_start_of_its_own_is_called_with_its_own_arguments():
    strategy = averaged(OwnStart(), WIMA(W))
    result, calls = play(strategy, greeting="hello")
    assert strategy.greeting == "hello"
    assert f"wima{W}/loss" in result.evaluate_metrics_serverapp[1] and len(calls[1]) == 2


def test_a_loop_without_start_has_its_average():
    class Loop(FedAvg):
        def start(self, grid, arrays):
            for t in (1, 2):
                replies = grid.send_and_receive(self.configure_train(t, arrays, config(), grid))
                arrays, _ = self.aggregate_train(t, replies)
            return "done"

    def config():
        from flwr.app import ConfigRecord

        return ConfigRecord()

    strategy = averaged(Loop(), WIMA(W))
    with grid() as nodes:
        assert strategy.start(nodes, initial()) == "done"
    assert strategy.averaging.seen == 2
    assert numpy(strategy.averaging.models()[f"wima{W}"])["steps"] == 2


def test_several_averagers_watch_one_run():
    averagers = [WIMA(2), EMA(0.5), LAWA(2, 2), SWA(start=0.5, cycle=1)]
    result, calls = play(averaged(FedAvg(), averagers))
    assert list(result.models) == ["plain", *(a.name for a in averagers)]
    w = [calls[t][0]["w"].numpy().astype(np.float64) for t in range(1, ROUNDS + 1)]
    ema = w[0]
    for model in w[1:]:
        ema = 0.5 * ema + 0.5 * model
    expected = {
        "wima2": (w[4] + w[5]) / 2,
        "ema0.5": ema,
        "lawa2x2": (w[3] + w[5]) / 2,
        averagers[3].name: (w[4] + w[5]) / 2,  # round 0.5 * 6 = 3 is left out: t > start
    }
    for name, value in expected.items():
        np.testing.assert_allclose(result.models[name]["w"].numpy(), value, rtol=1e-6)


def test_averages_of_a_part_take_the_rest_from_the_newest_model():
    strategy = averaged(FedAvg(), WIMA(W, part="classifier"), classifier=["bias"])
    result, calls = play(strategy)
    average = numpy(result.models[f"wima{W}-classifier"])
    whole = numpy(mean([calls[t][0] for t in range(ROUNDS - W + 1, ROUNDS + 1)]))
    assert average["bias"] == whole["bias"]
    assert (average["w"] == calls[ROUNDS][0]["w"].numpy()).all()


@pytest.mark.parametrize("which", ["average", "plain"])
def test_clients_evaluate_the_model_that_is_asked_for(which):
    strategy = averaged(FedAvg(), WIMA(W), evaluate_clients_with=which)
    result, calls = play(strategy)
    for t in range(1, ROUNDS + 1):
        expected = metrics(calls[t][1 if which == "average" else 0])
        found = result.evaluate_metrics_clientapp[t]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-12)


def test_a_round_that_aggregated_nothing_is_left_out():
    strategy = averaged(FedAvg(), WIMA(W))
    result, calls = play(strategy, pulling(fails=(2, 4)))
    assert strategy.averaging.seen == ROUNDS - 2
    assert same(calls[2][1], calls[1][1])
    kept = [calls[t][0] for t in (3, 5, 6)]
    assert same(result.models[f"wima{W}"], mean(kept))


def test_integers_take_the_newest_value():
    result, _ = play(averaged(FedAvg(), WIMA(W)))
    average, plain = numpy(result.models[f"wima{W}"]), numpy(result.models["plain"])
    assert average["steps"] == plain["steps"] == pytest.approx(ROUNDS)


def feed(strategy, models, first=1):
    for t, arrays in enumerate(models, first):
        strategy.averaging.add(t, record(arrays))
    return strategy.averaging


def drawn(n: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"w": rng.normal(size=(2, 3)).astype(np.float32), "n": np.array([k])} for k in range(n)]


def test_every_array_keeps_its_dtype():
    rng, kinds = np.random.default_rng(0), (np.float16, np.float32, np.float64)
    models = [{k.__name__: rng.normal(size=3).astype(k) for k in kinds} for _ in range(4)]
    averages = feed(averaged(FedAvg(), WIMA(4)), models).model("wima4")
    for kind in kinds:
        expected = np.mean([m[kind.__name__].astype(np.float64) for m in models], axis=0)
        found = averages[kind.__name__].numpy()
        assert found.dtype == kind
        assert (found == expected.astype(kind)).all()


def test_other_kinds_of_arrays_are_refused_by_name():
    with pytest.raises(UsageError, match=r"'z' is complex64; expected float16"):
        feed(averaged(FedAvg(), WIMA(4)), [{"z": np.zeros(2, np.complex64)}])
    with pytest.raises(UsageError, match="no floating array"):
        feed(averaged(FedAvg(), WIMA(4)), [{"n": np.zeros(2, np.uint8)}])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": np.zeros((2, 3), np.float32)}, r"Round 2: .*'n' is gone"),
        ({**drawn(1)[0], "x": np.zeros(1)}, r"Round 2: .*'x' is new"),
        ({**drawn(1)[0], "w": np.zeros((3, 2), np.float32)}, r"'w' has shape \(3, 2\), .*\(2, 3\)"),
    ],
    ids=["missing", "new", "shape"],
)
def test_arrays_that_change_are_an_error_that_says_so(other, message):
    with pytest.raises(RunError, match=message):
        feed(averaged(FedAvg(), WIMA(4)), [drawn(1)[0], other])


@pytest.mark.parametrize("which", [0, 1])
def test_a_model_that_is_not_finite_is_left_out(which):
    models = drawn(4)
    models[which]["w"][0, 0] = np.nan
    averages = feed(averaged(FedAvg(), WIMA(2)), models)
    assert averages.seen == 3
    expected = (models[2]["w"].astype(np.float64) + models[3]["w"]) / 2
    assert (averages.model("wima2")["w"].numpy() == expected.astype(np.float32)).all()


def test_what_is_given_is_copied():
    models = drawn(2)
    strategy = averaged(FedAvg(), WIMA(2))
    for t, arrays in enumerate(models, 1):
        given = record(arrays)
        strategy.averaging.add(t, given)
        given.clear()
    expected = (models[0]["w"].astype(np.float64) + models[1]["w"]) / 2
    for _ in range(2):
        average = strategy.averaging.model("wima2")
        assert (average.pop("w").numpy() == expected.astype(np.float32)).all()


PRIVATE = {
    "server-fixed": lambda s: DifferentialPrivacyServerSideFixedClipping(s, 1e-3, 1e3, NODES),
    "client-fixed": lambda s: DifferentialPrivacyClientSideFixedClipping(s, 1e-3, 1e3, NODES),
    "server-adaptive": lambda s: DifferentialPrivacyServerSideAdaptiveClipping(
        s, 1e-3, NODES, clipped_count_stddev=1.0
    ),
    "client-adaptive": lambda s: DifferentialPrivacyClientSideAdaptiveClipping(
        s, 1e-3, NODES, clipped_count_stddev=1.0
    ),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_an_average_of_models_before_their_noise_is_refused(name):
    strategy = PRIVATE[name](averaged(FedAvg(), WIMA(W)))
    with pytest.raises(UsageError, match=r"Put the average outside: averaged\("):
        play(strategy)
    with grid() as nodes, pytest.raises(UsageError, match="without protection"):
        strategy.configure_train(1, initial(), {}, nodes)


def test_the_average_of_private_models_is_allowed():
    private, before = play(PRIVATE["server-fixed"](FedAvg()))
    strategy = averaged(PRIVATE["server-fixed"](FedAvg()), WIMA(W))
    result, calls = play(strategy)
    assert isinstance(strategy, DifferentialPrivacyServerSideFixedClipping)
    assert same(result.arrays, private.arrays) and same(calls[ROUNDS][0], before[ROUNDS][0])
    without_noise, _ = play(FedAvg())
    assert not same(result.arrays, without_noise.arrays)
    w = [calls[t][0]["w"].numpy() for t in range(ROUNDS - W + 1, ROUNDS + 1)]
    np.testing.assert_allclose(result.models[f"wima{W}"]["w"].numpy(), np.mean(w, 0), rtol=1e-6)


def test_the_average_is_served_if_asked_for():
    result, _ = play(averaged(FedAvg(), WIMA(W), serve="average"))
    assert result.served == f"wima{W}" and same(result.arrays, result.models[f"wima{W}"])
    assert not same(result.arrays, result.models["plain"])


def leading(leads: list[bool]):
    """Metrics by which the average leads in these evaluations, given in the order of rounds."""
    calls = iter([x for lead in leads for x in (0.5, 0.6 if lead else 0.4)])
    return lambda arrays: MetricRecord({"accuracy": next(calls)})


@pytest.mark.parametrize(
    ("leads", "average_is_served"),
    [
        ([True, True], False),
        ([True, True, True], True),
        ([True, True, False, True, True], False),
        ([True, True, True, False, False, True], True),
        ([True, True, True, False, False, False], False),
    ],
)
def test_the_average_is_served_once_it_has_led_long_enough(leads, average_is_served):
    first = iter([MetricRecord({"accuracy": 0.0})])
    judged = leading(leads)

    def evaluate(arrays):  # the initial model, then both models of every round
        return next(first, None) or judged(arrays)

    strategy = averaged(FedAvg(), WIMA(W), serve="better", patience=3)
    result, _ = play(strategy, evaluate=evaluate, rounds=len(leads))
    assert (result.served == f"wima{W}") is average_is_served
    assert same(result.arrays, result.models[result.served])


def test_a_lower_loss_can_decide():
    options = {"serve": "better", "patience": 1, "metric": "loss", "lower_is_better": True}
    strategy = averaged(FedAvg(), WIMA(W), **options)
    result, _ = play(strategy)
    last = result.evaluate_metrics_serverapp[ROUNDS]
    assert (result.served == f"wima{W}") == (last[f"wima{W}/loss"] < last["loss"])


def test_better_needs_an_evaluation_and_its_metric():
    strategy = averaged(FedAvg(), WIMA(W), serve="better")
    with pytest.raises(UsageError, match="give `start` an evaluate_fn"):
        play(strategy, evaluate_fn=None)
    strategy = averaged(FedAvg(), WIMA(W), serve="better", metric="f1")
    with pytest.raises(UsageError, match=r"'f1'.* it gives loss, accuracy"):
        play(strategy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"serve": "best"}, "serve must be one of plain, average, better, got 'best'"),
        ({"patience": 0}, "patience must be a positive integer"),
        ({"evaluate_clients_with": "both"}, "evaluate_clients_with must be one of"),
        ({"window_store": "files"}, "window_store='files' needs a folder"),
        ({"store_dtype": "int8"}, "store_dtype must be one of float32, bfloat16"),
        ({"nonsense": 1}, "Unknown setting 'nonsense'"),
    ],
)
def test_settings_are_checked(options, message):
    strategy = FedAvg()
    with pytest.raises(UsageError, match=message):
        averaged(strategy, WIMA(W), **options)
    assert type(strategy) is FedAvg


def test_mistakes_are_told():
    with pytest.raises(UsageError, match="averaged already"):
        averaged(averaged(FedAvg(), WIMA(W)), WIMA(W))
    with pytest.raises(UsageError, match="use averaged_legacy"):
        averaged("FedAvg", WIMA(W))
    with pytest.raises(UsageError, match=r"needs an averager"):
        averaged(FedAvg(), [])
    with pytest.raises(UsageError, match="needs the names of the last layer"):
        averaged(FedAvg(), WIMA(W, part="features"))
    with pytest.raises(UsageError, match="no floating array 'head'"):
        feed(averaged(FedAvg(), WIMA(W, part="features"), classifier=["head"]), drawn(1))
    with pytest.raises(UsageError, match="is a share of all rounds"):
        feed(averaged(FedAvg(), SWA(start=0.75)), drawn(1))


AVERAGERS = [WIMA(5), EMA(0.9), LAWA(3, 2), SWA(start=4, cycle=2)]


@pytest.mark.parametrize("stored", [{}, {"window_store": "files"}, {"store_dtype": "bfloat16"}])
@pytest.mark.parametrize("cut", [1, 7, 13])
def test_a_restarted_server_goes_on_with_its_window(tmp_path, stored, cut):
    models = drawn(20)
    whole = feed(averaged(FedAvg(), AVERAGERS, folder=tmp_path / "whole", **stored), models)
    options = {"folder": tmp_path / "cut", **stored}
    first = feed(averaged(FedAvg(), AVERAGERS, **options), models[:cut])
    first.close()
    again = averaged(FedAvg(), AVERAGERS, **options)
    assert again.averaging.seen == cut
    assert same(again.averaging.model("plain"), record(models[cut - 1]))
    second = feed(again, models[cut:])
    for name in whole.models():
        assert same(second.model(name), whole.model(name))


def test_storage_in_files_gives_the_same_averages_as_memory(tmp_path):
    models = drawn(30)
    memory = feed(averaged(FedAvg(), WIMA(12)), models)
    files = feed(averaged(FedAvg(), WIMA(12), folder=tmp_path, window_store="files"), models)
    assert same(files.model("wima12"), memory.model("wima12"))


def test_a_run_of_two_servers_is_one_run(tmp_path):
    options = {"folder": tmp_path / "state", "serve": "better", "patience": 2}
    first = averaged(FedAvg(), WIMA(W), **options)
    _, early = play(first, rounds=3)
    judged = first.averaging.serving
    first.averaging.close()
    second = averaged(FedAvg(), WIMA(W), **options)
    kept = second.averaging.serving
    assert (kept.average, kept.streak) == (judged.average, judged.streak)
    start = second.averaging.model("plain")
    assert same(start, early[3][0])
    _, late = play(second, rounds=2, start=start)
    assert same(late[0][1], early[3][1])  # the average is there before the first round
    models = [early[t][0] for t in (1, 2, 3)] + [late[t][0] for t in (1, 2)]
    assert same(late[2][1], mean(models[-W:]))


def test_state_of_other_averagers_or_damaged_is_refused(tmp_path):
    feed(averaged(FedAvg(), WIMA(5), folder=tmp_path), drawn(3)).close()
    with pytest.raises(UsageError, match=r"holds averages with averagers .*WIMA\(window=5"):
        averaged(FedAvg(), WIMA(6), folder=tmp_path)
    for path in tmp_path.glob("*.json"):
        path.write_text("{}")
    with pytest.raises(RunError, match=r"No state in .* is whole"):
        averaged(FedAvg(), WIMA(5), folder=tmp_path)


def test_two_servers_do_not_share_a_folder(tmp_path):
    first = averaged(FedAvg(), WIMA(5), folder=tmp_path)
    with pytest.raises(UsageError, match="Another process is working on"):
        averaged(FedAvg(), WIMA(5), folder=tmp_path)
    first.averaging.close()
    averaged(FedAvg(), WIMA(5), folder=tmp_path)

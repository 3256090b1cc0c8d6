"""An averaged Flower strategy keeps its window on disk, and a new server goes on with it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

from tests.helpers.flower_toys import W, drawn, feed, grid, initial, mean, play, record, same
from wima import EMA, LAWA, SWA, WIMA, RunError, UsageError
from wima.flower import averaged
from wima.storage import manifests
from wima.storage.segments import Segments

AVERAGERS = [WIMA(5), WIMA(4, buckets=2), EMA(0.9), LAWA(3, 2), SWA(start=4, cycle=2)]


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


OPTIMIZERS = {
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9, server_learning_rate=0.5),
    "FedAdam": lambda: FedAdam(eta=0.1),
    "FedYogi": lambda: FedYogi(eta=0.1),
    "FedAdagrad": lambda: FedAdagrad(eta=0.1),
    "wrapped": lambda: Outside(FedAdam(eta=0.1)),
}


class Outside(FedAvg):
    """Wraps a strategy as Flower's own wrappers do, and counts in several types."""

    def __init__(self, strategy: FedAvg) -> None:
        super().__init__()
        self.strategy = strategy
        self.calls, self.rate, self.kinds = 0, np.float32(1), {}

    def configure_train(self, server_round, arrays, config, grid):
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        self.calls, self.rate = self.calls + 1, self.rate / np.float32(3)
        self.kinds[self.calls] = [("round", server_round), b"", np.ones((0, 2)), torch.ones(2)]
        return self.strategy.aggregate_train(server_round, replies)


def rounds(strategy, nodes, arrays, count):
    """Rounds as `start` counts them; nodes come in an order that depends on the round alone."""
    for t in range(1, count + 1):
        random.seed(strategy.averaging.seen)
        messages = strategy.configure_train(t, arrays, ConfigRecord(), nodes)
        arrays, _ = strategy.aggregate_train(t, nodes.send_and_receive(messages))
    return arrays


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restarted_server_goes_on_with_the_memory_of_its_strategy(name, tmp_path):
    make = OPTIMIZERS[name]
    whole = averaged(make(), WIMA(W))
    with grid() as nodes:
        rounds(whole, nodes, initial(), 6)
    with grid() as nodes:
        first = averaged(make(), WIMA(W), folder=tmp_path)
        rounds(first, nodes, initial(), 3)
        first.averaging.close()
        again = averaged(make(), WIMA(W), folder=tmp_path)
        rounds(again, nodes, again.averaging.model("plain"), 3)
    for model in ("plain", f"wima{W}"):
        assert same(again.averaging.model(model), whole.averaging.model(model))
    if name == "wrapped":
        assert (again.calls, again.rate) == (whole.calls, whole.rate)
        assert type(again.rate) is np.float32
        assert repr(again.kinds) == repr(whole.kinds)


def restarted(tmp_path, before, after, start=None):
    """Two rounds, and one of a new server."""
    with grid() as nodes:
        first = averaged(before, WIMA(W), folder=tmp_path)
        rounds(first, nodes, initial(), 2)
        first.averaging.close()
        again = averaged(after, WIMA(W), folder=tmp_path)
        rounds(again, nodes, start or again.averaging.model("plain"), 1)
    return first, again


def test_hyper_parameters_are_those_of_the_new_server(tmp_path):
    _, again = restarted(tmp_path, FedAdam(eta=0.1), FedAdam(eta=0.2))
    assert again.eta == 0.2


def test_a_run_from_another_model_starts_with_a_fresh_strategy(tmp_path, caplog):
    alone = averaged(FedAdam(), WIMA(W))
    _, again = restarted(tmp_path, FedAdam(), FedAdam(), start=initial())
    assert "does not start from the newest model" in caplog.text
    with grid() as nodes:
        rounds(alone, nodes, initial(), 1)
    np.testing.assert_allclose(again.m_t["w"], alone.m_t["w"], rtol=1e-6)


def test_what_cannot_be_resumed_is_named(tmp_path, caplog):
    strategy, circle = FedAdam(), []
    circle.append(circle)
    others = {
        "dice": random.Random(0),
        "circle": circle,
        "texts": np.array(["a"]),
        "sparse": torch.eye(2).to_sparse(),
    }
    vars(strategy).update(others)
    restarted(tmp_path / "others", strategy, FedAdam())
    for name in others:
        assert f"{name} of FedAdam could not be saved: it starts from" in caplog.text
    restarted(tmp_path / "other", FedAdam(), FedYogi())
    assert "The saved strategy is FedAdam: FedYogi starts without its state" in caplog.text


def test_only_what_changes_is_saved(tmp_path):
    strategy = FedAdam()
    strategy.data = np.zeros(1000)
    restarted(tmp_path, strategy, FedAdam())
    (newest, *_), _ = manifests.find(Segments(tmp_path))
    assert set(newest.extra["strategy"]["changed"]) == {"current_arrays", "m_t", "v_t"}


def test_a_folder_of_the_first_release_is_resumed(tmp_path):
    """Averagers are compared by their text; WIMA had no buckets then."""
    feed(averaged(FedAvg(), WIMA(5), folder=tmp_path), drawn(3)).close()
    newest = manifests.manifests(tmp_path)[0]
    identity = manifests.read_manifest(newest, manifests.FORMAT)["identity"]
    assert identity["averagers"] == {"wima5": "WIMA(window=5, part='all')"}
    other = averaged(FedAvg(), WIMA(5), folder=tmp_path)
    assert other.averaging.seen == 3
    other.averaging.close()


def test_state_of_other_averagers_or_damaged_is_refused(tmp_path):
    feed(averaged(FedAvg(), WIMA(5), folder=tmp_path), drawn(3)).close()
    with pytest.raises(UsageError, match=r"contains averages with averagers .*WIMA\(window=5"):
        averaged(FedAvg(), WIMA(6), folder=tmp_path)
    for path in tmp_path.glob("*.json"):
        path.write_text("{}")
    with pytest.raises(RunError, match=r"No state in .* is intact"):
        averaged(FedAvg(), WIMA(5), folder=tmp_path)


def test_two_servers_do_not_share_a_folder(tmp_path):
    first = averaged(FedAvg(), WIMA(5), folder=tmp_path)
    with pytest.raises(UsageError, match="Another process is working on"):
        averaged(FedAvg(), WIMA(5), folder=tmp_path)
    first.averaging.close()
    averaged(FedAvg(), WIMA(5), folder=tmp_path)

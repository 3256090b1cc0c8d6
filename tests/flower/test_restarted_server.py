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
    first = averaged(FedAvg(), WIMA(W), folder=tmp_path)
    _, early = play(first, rounds=3)
    first.averaging.close()
    second = averaged(FedAvg(), WIMA(W), folder=tmp_path)
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
    """Wraps a strategy as Flower's own wrappers do, and has numbers and arrays of its own."""

    def __init__(self, strategy: FedAvg) -> None:
        super().__init__()
        self.strategy = strategy
        self.calls, self.rate, self.sums = 0, np.float32(1), {}

    def configure_train(self, server_round, arrays, config, grid):
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        self.calls, self.rate = self.calls + 1, self.rate / np.float32(3)
        self.sums["all"] = self.sums.get("all", np.zeros((2, 2))) + server_round
        self.newest = np.array([self.calls, server_round])
        return self.strategy.aggregate_train(server_round, replies)


def rounds(strategy, nodes, arrays, count):
    """Rounds as `start` counts them; nodes come in an order that depends on the round alone."""
    strategy.averaging.begin(arrays)
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
        assert repr(again.sums) == repr(whole.sums)
        assert repr(again.newest) == repr(whole.newest)


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


def test_another_strategy_starts_without_the_state(tmp_path, caplog):
    restarted(tmp_path, FedAdam(), FedYogi())
    assert "The saved strategy is FedAdam: FedYogi starts without its state" in caplog.text


def test_only_arrays_and_changed_numbers_are_saved(tmp_path):
    strategy, circle = FedAdam(), []
    circle.append(circle)
    others = {
        "dice": random.Random(0),
        "circle": circle,
        "text": "a",
        "texts": np.array(["a"]),
        "numbers": [0.1, 0.2],
        "tensor": torch.ones(2),
    }
    vars(strategy).update(others, table=np.zeros((3, 2)), matrices=[np.eye(2), np.float32(1)])
    restarted(tmp_path, strategy, FedAdam())
    (newest, *_), _ = manifests.find(Segments(tmp_path))
    values = newest.extra["strategy"]["values"]
    assert set(values) == {"current_arrays", "m_t", "v_t", "table", "matrices"}
    assert values["table"] == {"ndarray": [""]} and values["matrices"] == {"list": [0, 1]}


def with_extra(folder, change) -> None:
    """Change what is saved beside the averages, as if another version had written it."""
    for path in manifests.manifests(folder):
        manifest = manifests.read_manifest(path, manifests.FORMAT)
        change(manifest["extra"])
        manifests.write_manifest(path, manifest)


@pytest.mark.parametrize("make", [FedAvg, FedAdam])
def test_a_state_of_an_earlier_version_is_read_or_refused_with_advice(make, tmp_path):
    """It had a digest of every attribute and a codec for every kind of value."""
    changed = {} if make is FedAvg else {"m_t": {"tuple": [{"value": "dict"}]}}

    def earlier(extra):
        strategy = {"name": make.__name__, "round": 3, "changed": changed, "lost": ["dice"]}
        extra.update(average=False, streak=0, strategy=strategy)

    feed(averaged(make(), WIMA(5), folder=tmp_path), drawn(3)).close()
    with_extra(tmp_path, earlier)
    if changed:
        with pytest.raises(
            UsageError, match=r"of FedAdam \(m_t\).*Finish the run with that version"
        ):
            averaged(make(), WIMA(5), folder=tmp_path)
    else:
        again = averaged(make(), WIMA(5), folder=tmp_path).averaging
        assert again.seen == 3 and again.round(1) == 4


def test_a_folder_of_the_first_release_is_resumed(tmp_path):
    """Averagers are compared by their text; WIMA had no buckets then."""
    feed(averaged(FedAvg(), WIMA(5), folder=tmp_path), drawn(3)).close()
    newest = manifests.manifests(tmp_path)[0]
    identity = manifests.read_manifest(newest, manifests.FORMAT)["identity"]
    assert identity["averagers"] == {"wima5": "WIMA(window=5, part='all')"}
    other = averaged(FedAvg(), WIMA(5), folder=tmp_path)
    assert other.averaging.seen == 3
    other.averaging.close()


def test_a_second_sum_after_a_huge_model_is_resumed_and_one_without_it_is_read(tmp_path):
    """Checkpoints of earlier versions have no second sum and no norm of the initial model."""
    models, options = drawn(16), {"diverged": 1e30}
    models[7]["w"] = models[7]["w"] * np.float32(1e20)
    whole = feed(averaged(FedAvg(), [WIMA(5), LAWA(3, 2)], **options), models)
    for cut in (7, 10):
        options["folder"] = tmp_path / str(cut)
        feed(averaged(FedAvg(), [WIMA(5), LAWA(3, 2)], **options), models[:cut]).close()
        path = manifests.manifests(options["folder"])[0]
        manifest = manifests.read_manifest(path, manifests.FORMAT)
        sums = manifest["averages"]["wima5"]["tuple"], manifest["averages"]["lawa3x2"]["tuple"][0]
        assert [bool("tensor" in s[4]) for s in (sums[0], sums[1]["tuple"])] == 2 * [cut == 10]
        if cut == 7:
            del manifest["extra"]["first_norm"], sums[0][3:], sums[1]["tuple"][3:]
            manifests.write_manifest(path, manifest)
        again = feed(averaged(FedAvg(), [WIMA(5), LAWA(3, 2)], **options), models[cut:])
        for name in whole.models():
            assert same(again.model(name), whole.model(name))
        again.close()


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

"""Every algorithm over Flower gives the simulator's vectors; memory stays on the nodes."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.common.serde import message_to_proto
from torch import nn

from tests.helpers.commands import printed
from tests.helpers.federations import SIZES, FaultyGrid, assert_models, over, settings_of, simulated
from tests.helpers.paths import ROOT
from wima import models
from wima.algorithms import BY_NAME
from wima.algorithms.traffic import traffic
from wima.core.errors import RunError, UsageError
from wima.core.statistics import summary
from wima.flower import Federation, Options
from wima.flower.app.server import as_result, as_text, read_order
from wima.runs.build import build, build_task
from wima.storage import manifests
from wima.storage.segments import Segments

CASES = {
    **{name: {"algorithm": name} for name in BY_NAME},
    "scaffold-I": {"algorithm": "scaffold:option=I"},
    "scaffold-adam": {"algorithm": "scaffold", "server": "adam:lr=0.01"},
    "fedavgm": {"server": "momentum"},
    "yogi-uniform": {"server": "yogi:lr=0.01", "weighting": "uniform"},
    "adagrad-cosine": {"server": "adagrad:lr=0.01", "schedule": "cosine"},
    "mimelite-sgd": {"algorithm": "mimelite", "server": "sgd:lr=0.5"},
    "fedcm-clip": {"algorithm": "fedcm", "clip": 0.5, "momentum": 0.6, "weight_decay": 0.1},
    "fedavg-faults": {"dropout": 0.3, "stragglers": 0.5, "epochs": 3},
    "adabest-mean": {"algorithm": "adabest:serve_mean=true"},
}
MEMORIES = ("scaffold", "adabest", "feddyn")


@pytest.mark.parametrize("case", CASES)
def test_vectors_are_those_of_the_simulator(case, tmp_path):
    settings = settings_of(tmp_path, **CASES[case])
    records, expected = simulated(settings)
    _, run = over(FaultyGrid(), settings, tmp_path / "run")
    assert [r.cohort for r in run.records] == [r.cohort for r in records]
    assert_models(run, settings, expected)
    for found, record in zip(run.records, records, strict=True):
        assert found.metrics.keys() == record.metrics.keys()
        for name in record.metrics:
            assert found.metrics[name] == pytest.approx(record.metrics[name], abs=1e-6)


def test_statistics_of_norm_layers_are_averaged_as_in_the_simulator(tmp_path, monkeypatch):
    def norms(shape, classes):
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))

    monkeypatch.setitem(models.BY_NAME, "norms", norms)
    settings = settings_of(tmp_path, model="norms", algorithm="scaffold")
    _, expected = simulated(settings)
    _, run = over(FaultyGrid(), settings, tmp_path / "run")
    assert_models(run, settings, expected)


@pytest.mark.parametrize("algorithm", MEMORIES)
def test_memory_is_in_the_nodes_state_and_nowhere_on_the_server(algorithm, tmp_path):
    settings = settings_of(tmp_path, algorithm=algorithm)
    with build(settings) as simulation:
        visited = {i for record in simulation for i in record.cohort}
        expected = simulation.state.memory.visited()
    grid = FaultyGrid()
    _, run = over(grid, settings, tmp_path / "run")
    for i in range(len(SIZES)):
        state = grid.nodes[100 + i].context.state
        assert ("wima.memory" in state) == (i in visited)
        if i not in visited:
            continue
        arrays = state["wima.memory"]
        assert isinstance(arrays, ArrayRecord)
        newest = max(int(name.split(".")[0]) for name in arrays)
        kept = torch.from_numpy(arrays[f"{newest}.0"].numpy())
        torch.testing.assert_close(kept, expected[i][0], rtol=1e-6, atol=1e-7)
    store = Segments(run.path / "checkpoints")
    (newest, *_), wrong = manifests.find(store)
    assert not wrong
    for name in newest.content["clients"]:
        about = store.about(name)
        assert all(set(state) == {"tuple"} for state in about.values())
        assert all(set(part) == {"value"} for s in about.values() for part in s["tuple"])


def test_algorithms_without_memory_leave_no_trace_on_nodes(tmp_path):
    grid = FaultyGrid()
    over(grid, settings_of(tmp_path), tmp_path / "run")
    assert all(not node.context.state for node in grid.nodes.values())


def test_only_mime_asks_twice_in_a_round(tmp_path):
    for algorithm, kinds in (("mime", ["train.gradient", "train"]), ("mimelite", ["train"])):
        grid = FaultyGrid()
        settings = settings_of(tmp_path, algorithm=algorithm, rounds=2)
        _, run = over(grid, settings, tmp_path / algorithm)
        asked = [(node, kind) for node, kind in grid.sent if kind != "query"]
        expected = [(100 + i, k) for r in run.records for k in kinds for i in r.cohort]
        assert asked == expected


def test_messages_hold_arrays_and_plain_values_only(tmp_path):
    kinds = set()

    def look(node, message, reply):
        for record in [*message.content.values(), *reply.content.values()]:
            kinds.add(type(record).__name__)
            if isinstance(record, ConfigRecord):
                assert all(type(value) in (str, int, float) for value in record.values())
        return reply

    over(FaultyGrid(look), settings_of(tmp_path, algorithm="mime"), tmp_path / "run")
    assert kinds == {"ArrayRecord", "ConfigRecord", "MetricRecord"}


class Killed(Exception):  # noqa: N818  (it is no error)
    """The server's process ends here."""


@pytest.mark.parametrize("case", ["fedavg", "scaffold", "adabest", "mime", "scaffold-adam"])
@pytest.mark.parametrize("new_nodes", [False, True], ids=["same-run", "new-run"])
def test_a_killed_and_restarted_server_continues_to_the_same_vectors(case, new_nodes, tmp_path):
    """In the middle of a round, when some clients have trained already and others have not."""
    settings = settings_of(tmp_path, **CASES[case], rounds=6)
    _, expected = simulated(settings)
    trained = []

    def kill(node, message, reply):
        trained.append(message.metadata.message_type == "train")
        if sum(trained) == 11:  # the second of the fourth round's three clients
            raise Killed
        return reply

    memory = str(tmp_path / "memory")
    grid = FaultyGrid(kill, memory=memory)
    with pytest.raises(RunError, match="after 3 of 6 rounds"):
        over(grid, settings, tmp_path / "run")
    if new_nodes:  # a new run of Flower: nodes have lost their state, but not their files
        grid = FaultyGrid(memory=memory)
    grid.spoil = lambda node, message, reply: reply
    _, run = over(grid, settings, tmp_path / "run")
    assert [r.t for r in run.records] == [1, 2, 3, 4, 5, 6]
    assert_models(run, settings, expected)


def test_a_node_may_bring_its_own_examples(tmp_path):
    settings = settings_of(tmp_path, clients_per_round=5)
    _, expected = simulated(settings)
    grid = FaultyGrid()
    task = build_task(settings)
    for i in range(len(SIZES)):
        x, y = task.data.client(i)
        file = tmp_path / f"own-{i}.npz"
        np.savez(file, x=x, y=y, client=np.zeros(len(y), int), x_test=x, y_test=y, classes=3)
        grid.nodes[100 + i].context.node_config["data"] = str(file)
    _, run = over(grid, settings, tmp_path / "run")
    assert_models(run, settings, expected)


def test_a_finished_run_and_other_settings_are_not_written_over(tmp_path):
    settings, out = settings_of(tmp_path, rounds=1), tmp_path / "run"
    over(FaultyGrid(), settings, out)
    with pytest.raises(UsageError, match="is finished; to repeat it, use another folder"):
        over(FaultyGrid(), settings, out)
    with pytest.raises(UsageError, match=r"different settings \(lr: 0.05 there\)"):
        over(FaultyGrid(), settings.model_copy(update={"lr": 0.1}), out)


def test_start_refuses_what_the_settings_say(tmp_path):
    strategy = Federation(settings_of(tmp_path), tmp_path / "run")
    with pytest.raises(UsageError, match="defined by the settings"):
        strategy.start(FaultyGrid(clients=1), num_rounds=3)


def test_the_result_is_flowers_with_all_models_metrics(tmp_path):
    settings = settings_of(tmp_path)
    result = Federation(settings, tmp_path / "run").start(FaultyGrid())
    records, expected = simulated(settings)
    metrics = result.evaluate_metrics_serverapp[5]
    assert metrics["wima2/accuracy"] == pytest.approx(records[-1].metrics["wima2"]["accuracy"])
    layout = build_task(settings).layout
    plain = {name: array.numpy() for name, array in result.arrays.items()}
    for name, tensor in layout.unflatten(expected["plain"]).items():
        torch.testing.assert_close(torch.from_numpy(plain[name]), tensor, rtol=1e-6, atol=1e-7)
    assert result.served == "plain" and result.models["plain"] == result.arrays
    for name, tensor in layout.unflatten(expected["wima2"]).items():
        found = torch.from_numpy(result.models["wima2"][name].numpy())
        torch.testing.assert_close(found, tensor, rtol=1e-6, atol=1e-7)
    metrics_line, models_line = as_text(result, tmp_path / "run")
    assert f"wima2/accuracy {metrics['wima2/accuracy']:.3f}" in metrics_line
    assert "plain.safetensors, wima2.safetensors" in models_line


def test_the_result_has_what_records_say_of_clients(tmp_path):
    _, run = over(FaultyGrid(), settings_of(tmp_path), tmp_path / "run")
    lines = list(run.lines())
    run.lines = lambda: lines
    for line in lines:
        line.pop("clients", None)
    assert as_result(run).clients == {}
    plain, average = summary([0.5, 0.6]), summary([0.5, 0.7], [0.5, 0.6])
    lines[-1]["clients"] = {"plain": plain, "wima2": average}
    expected = {"plain": {"accuracy": plain}, "wima2": {"accuracy": average}}
    assert as_result(run).clients == {5: expected}
    assert average["gained"] == 1


def test_nodes_are_never_asked_to_evaluate(tmp_path):
    grid = FaultyGrid()
    over(grid, settings_of(tmp_path), tmp_path / "run")
    assert {kind for _, kind in grid.sent} == {"query", "train"}


def test_the_example_app_shows_what_the_average_is_for():
    """On Flower's default of two nodes; Flower has nothing to install from a package index."""
    app = tomllib.loads((ROOT / "examples/flower/pyproject.toml").read_text(encoding="utf-8"))
    assert app["project"]["dependencies"] == []
    settings, _, _ = read_order(app["tool"]["flwr"]["app"]["config"])
    with build(settings.model_copy(update={"engine": "serial"})) as simulation:
        late = [record.metrics for record in simulation][-5:]
    assert build_task(settings).data.num_clients == 2
    for metrics in late:
        assert metrics["wima10"]["accuracy"] > metrics["plain"]["accuracy"]


def test_a_server_rule_of_its_own_is_named_by_its_algorithm(tmp_path):
    with pytest.raises(UsageError, match="FedDyn has its own server rule"):
        Federation(settings_of(tmp_path, algorithm="feddyn", server="adam"), tmp_path / "run")


def test_the_run_config_names_settings_and_options():
    config = {"settings": "digits", "overrides": "lr=0.5 rounds=3", "out": "a/b", "min-nodes": 2}
    settings, out, options = read_order(config)
    assert (settings.lr, settings.rounds, str(out)) == (0.5, 3, "a/b")
    assert options == Options(min_nodes=2)
    with pytest.raises(UsageError, match="did you mean 'min-nodes'"):
        read_order({"min-node": 2})
    with pytest.raises(UsageError, match="robust must be true or false"):
        read_order({"robust": "yes"})
    with pytest.raises(UsageError, match="out in the run config must be a string"):
        read_order({"out": 3})


def test_importing_wima_or_asking_who_a_node_is_needs_no_torch():
    code = (
        "import sys, wima; print('flwr' in sys.modules); "
        "from wima.flower import client_app; print('torch' in sys.modules)"
    )
    assert printed(code).split() == ["False", "False"]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mime", "feddyn"])
def test_messages_carry_the_vectors_that_the_algorithm_declares(name, tmp_path):
    """As Flower serialises them: vectors of float32, and a frame of a few kilobytes."""
    down, up = [], []

    def weigh(node, message, reply):
        for sizes, sent in ((down, message), (up, reply)):
            if message.metadata.message_type != "query":
                sizes.append(message_to_proto(sent).ByteSize())
        return reply

    large = {"data": "digits", "clients": len(SIZES), "alpha": "iid", "averagers": []}
    settings = settings_of(tmp_path, algorithm=name, rounds=2, **large)
    over(FaultyGrid(weigh), settings, tmp_path / "run")
    vector = 4 * build_task(settings).layout.size
    visits, declared = 2 * settings.clients_per_round, traffic(BY_NAME[name]())
    for sizes, vectors in ((down, declared.down), (up, declared.up)):
        frame = (sum(sizes) - visits * vectors * vector) / len(sizes)
        assert 0 < frame < 4000 < vector / 4

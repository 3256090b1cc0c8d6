"""Flower apps on our own processes: as they are, repeatable, whoever plays the nodes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from functools import cache
from importlib.metadata import version

import numpy as np
import pytest
import torch
from torch import nn

from tests.helpers.commands import environment, printed
from tests.helpers.flower_legacy import INITIAL, client_fn
from tests.helpers.flower_toys import NODES, grid, initial, pulling, same
from tests.helpers.paths import ROOT

# isort: split
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from wima import RunError, UsageError
from wima.data.sets.digits import load_digits
from wima.flower import LocalGrid, run_flower
from wima.flower.grid import TESTED

# A quick-start app as one writes it with torch: nothing in it knows of this package.


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))


@cache
def load_data(partition: int, partitions: int):
    images, labels = load_digits()
    x = torch.tensor(images[partition::partitions] / 16, dtype=torch.float32)
    return x, torch.tensor(labels[partition::partitions])


quickstart_client, quickstart_server = ClientApp(), ServerApp()


@quickstart_client.train()
def train(message: Message, context: Context) -> Message:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=context.run_config["lr"])
    losses = []
    for _ in range(context.run_config["epochs"]):
        for features, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(features), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    found = MetricRecord({"train_loss": float(np.mean(losses)), "num-examples": len(y)})
    reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": found})
    return Message(reply, reply_to=message)


@quickstart_client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net = Net().eval()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    with torch.no_grad():
        accuracy = float((net(x).argmax(1) == y).float().mean())
    found = MetricRecord({"accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": found}), reply_to=message)


@quickstart_server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_train=0.5, fraction_evaluate=1.0)
    start = ArrayRecord(Net().state_dict())
    result = strategy.start(grid, start, num_rounds=context.run_config["rounds"])
    context.state["final"] = result.arrays
    context.state["metrics"] = result.evaluate_metrics_clientapp[context.run_config["rounds"]]


def quickstart(**settings) -> Context:
    config = {"lr": 0.3, "epochs": 2, "rounds": 4}
    return run_flower(quickstart_server, quickstart_client, nodes=4, run_config=config, **settings)


@pytest.fixture(scope="module")
def alone() -> Context:
    return quickstart(workers=1)


def test_a_quickstart_app_runs_as_it_is(alone):
    assert alone.state["metrics"]["accuracy"] > 0.6  # ten classes


def test_the_same_seed_gives_the_same_bytes_with_any_number_of_workers(alone):
    again = quickstart(workers=2)
    assert same(again.state["final"], alone.state["final"])
    assert again.state["metrics"] == alone.state["metrics"]
    assert not same(quickstart(workers=1, seed=1).state["final"], alone.state["final"])


def test_the_servers_generators_are_left_as_they_were():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with grid() as nodes:
        torch.rand(1)
        FedAvg().start(nodes, initial(), 1)
    assert torch.equal(torch.rand(1), expected)


def counting() -> ClientApp:
    """Counts its messages in the node's state; fails, dies or sleeps as it is asked to."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        counter = context.state.setdefault("count", ConfigRecord({"n": 0}))
        counter["n"] += 1
        context.run_config["lr"] = 7.0  # must not last
        asked = message.content["config"]
        if asked.get("fail"):
            raise ValueError("as asked")
        if asked.get("die"):
            os._exit(3)
        if asked.get("sleep") == context.node_config["partition-id"]:
            time.sleep(1.0)
        asked["taken"] = True  # must not reach others
        found = {
            "n": counter["n"],
            "partition": context.node_config["partition-id"],
            "partitions": context.node_config["num-partitions"],
            "text": context.run_config["text"],
            "draw": float(np.random.random() + torch.rand(()).item()),
        }
        return Message(RecordDict({"config": ConfigRecord(found)}), reply_to=message)

    return app


def ask(nodes: LocalGrid, ids=None, content=None, **config) -> list[Message]:
    shared = content or RecordDict({"config": ConfigRecord(config)})
    ids = nodes.get_node_ids() if ids is None else ids
    return list(nodes.send_and_receive([Message(shared, i, "query") for i in ids]))


CONFIG = {"text": "hello", "lr": 0.1}


@pytest.fixture(scope="module", params=[1, 2], ids=["here", "children"])
def nodes(request):
    with LocalGrid(counting(), NODES, workers=request.param, run_config=CONFIG) as made:
        yield made


def counted(nodes: LocalGrid, node: int) -> int:
    return nodes.node_context(node).state["count"]["n"]


def test_nodes_know_who_they_are_and_remember(nodes):
    shared = RecordDict({"config": ConfigRecord({})})
    for n in (1, 2, 3):  # the first messages of this grid
        replies = ask(nodes, content=shared)
        assert [r.metadata.src_node_id for r in replies] == list(nodes.get_node_ids())
        found = [r.content["config"] for r in replies]
        assert [f["partition"] for f in found] == list(range(NODES))
        assert {f["partitions"] for f in found} == {NODES}
        assert {f["n"] for f in found} == {n} and {f["text"] for f in found} == {"hello"}
    assert "taken" not in shared["config"]
    for node in nodes.get_node_ids():
        assert nodes.node_context(node).run_config == CONFIG
        assert counted(nodes, node) == 3


def test_a_message_that_fails_is_an_error_reply_and_leaves_no_trace(nodes):
    first = next(iter(nodes.get_node_ids()))
    before = counted(nodes, first)
    (error,) = ask(nodes, [first], fail=True)
    assert error.has_error() and error.error.code == 2  # CLIENT_APP_RAISED_EXCEPTION
    assert "ValueError" in error.error.reason and "as asked" in error.error.reason
    assert error.metadata.src_node_id == first
    (reply,) = ask(nodes, [first])
    assert reply.content["config"]["n"] == before + 1


def test_messages_to_unknown_nodes_and_of_unknown_types_are_error_replies(nodes):
    known = next(iter(nodes.get_node_ids()))
    (error,) = ask(nodes, [12345])
    assert error.has_error() and "no node 12345" in error.error.reason
    content = RecordDict({"config": ConfigRecord({})})
    (error,) = nodes.send_and_receive([Message(content, known, "train")])
    assert error.has_error() and "No train function" in error.error.reason


def test_several_messages_to_one_node_are_handled_in_their_order(nodes):
    first = next(iter(nodes.get_node_ids()))
    before = counted(nodes, first)
    replies = ask(nodes, [first] * 5)
    assert [r.content["config"]["n"] for r in replies] == [before + k for k in range(1, 6)]


def test_replies_can_be_pulled_later(nodes):
    content = RecordDict({"config": ConfigRecord({})})
    messages = [Message(content, i, "query") for i in nodes.get_node_ids()]
    waiting, found = set(nodes.push_messages(messages)), []
    assert len(waiting) == NODES
    while waiting:
        replies = list(nodes.pull_messages(waiting))
        waiting -= {r.metadata.reply_to_message_id for r in replies}
        found += [r.content["config"]["partition"] for r in replies]
    assert sorted(found) == list(range(NODES))
    assert list(nodes.pull_messages(["1"])) == []  # taken already


def test_draws_depend_on_seed_node_and_message_alone(nodes):
    def draws(made: LocalGrid, order: int) -> list[tuple[int, float]]:
        found = []
        for _ in range(2):
            replies = ask(made, list(made.get_node_ids())[::order])
            answers = [r.content["config"] for r in replies]
            found += [(a["partition"], a["draw"]) for a in answers]
        return sorted(found)

    settings = {"workers": 1, "run_config": CONFIG}
    already = nodes._nodes[next(iter(nodes.get_node_ids()))].messages
    for node in nodes._nodes.values():  # let all have had the same number of messages
        ask(nodes, [node.context.node_id] * (already + 3 - node.messages))
    with LocalGrid(counting(), NODES, **settings) as other:
        for node in list(other.get_node_ids()):
            ask(other, [node] * (already + 3))
        expected = draws(other, 1)
    assert draws(nodes, -1) == expected
    assert len({draw for _, draw in expected}) == 2 * NODES
    with LocalGrid(counting(), NODES, seed=1, **settings) as another:
        assert draws(another, 1) != expected


def test_node_ids_come_from_the_seed():
    with grid(seed=3) as a, grid(seed=3) as b, grid(seed=4) as c:
        assert a.get_node_ids() == b.get_node_ids() != c.get_node_ids()
        assert len(set(a.get_node_ids())) == NODES


def test_a_timeout_returns_what_is_there_and_a_child_that_dies_is_replaced():
    with LocalGrid(counting(), 2, workers=2, run_config=CONFIG) as nodes:
        first, second = nodes.get_node_ids()
        content = RecordDict({"config": ConfigRecord({"sleep": 0})})
        messages = [Message(content, node, "query") for node in (first, second)]
        ask(nodes)  # both children are awake
        (quick,) = nodes.send_and_receive(messages, timeout=0.5)
        assert quick.metadata.src_node_id == second
        (error,) = ask(nodes, [first], die=True)
        assert error.has_error() and "exited with code 3" in error.error.reason
        assert [r.content["config"]["n"] for r in ask(nodes)] == [3, 3]


class Unloadable:
    def __reduce__(self):
        return (int, ("x",))  # int("x") raises where it is loaded


def test_an_app_that_workers_cannot_get_is_told():
    app, broken = ClientApp(), Unloadable()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return broken

    with pytest.raises(UsageError, match="A worker cannot load the ClientApp"):
        LocalGrid(app, 2, workers=2)
    broken = sys.stdout  # cannot be pickled
    with pytest.raises(UsageError, match="use workers=1"):
        LocalGrid(app, 2, workers=2)
    with LocalGrid(app, 2, workers=1) as nodes:
        (error, _) = ask(nodes)
        assert "must return a Message, got" in error.error.reason


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"nodes": 0}, "nodes must be a positive integer"),
        ({"workers": 0}, "workers must be a positive integer"),
        ({"seed": -1}, "seed must be a non-negative integer"),
        ({"client_app": "app"}, "expected a ClientApp"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(UsageError, match=message):
        LocalGrid(**{"client_app": pulling(), "nodes": 2, **settings})


def test_an_error_in_the_server_app_reaches_the_caller():
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        raise RunError("stop")

    with pytest.raises(RunError, match="stop"):
        run_flower(server, pulling(), nodes=2, workers=1)


def test_an_app_of_the_older_interface_runs():
    seen = []

    def server_fn(context: Context) -> ServerAppComponents:
        strategy = LegacyFedAvg(
            initial_parameters=ndarrays_to_parameters(INITIAL),
            evaluate_fn=lambda t, arrays, config: seen.append(t) or (0.0, {}),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=2))

    run_flower(ServerApp(server_fn=server_fn), ClientApp(client_fn), nodes=4, workers=1)
    assert seen == [0, 1, 2]


def test_a_script_without_a_main_guard_runs(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict\n"
        "from flwr.clientapp import ClientApp\n"
        "from wima.flower import LocalGrid\n"
        "app = ClientApp()\n"
        "@app.query()\n"
        "def query(message, context):\n"
        "    print('prints are no answers')\n"
        "    return Message(RecordDict({'m': MetricRecord({'one': 1})}), reply_to=message)\n"
        "with LocalGrid(app, 4, workers=2) as grid:\n"
        "    sent = [Message(RecordDict(), i, 'query') for i in grid.get_node_ids()]\n"
        "    print(sum(r.content['m']['one'] for r in grid.send_and_receive(sent)))\n"
    )
    command, paths = [sys.executable, str(script)], os.pathsep.join([str(ROOT), *sys.path])
    around = environment(PYTHONPATH=paths)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=around)
    assert done.stdout.split() == ["4"]


def test_importing_wima_needs_no_flower_and_without_it_the_error_says_what_to_install():
    code = (
        "import sys, wima, wima.averaging, wima.cli.main; print('flwr' in sys.modules)\n"
        "sys.modules['flwr'] = None  # as if it were not installed\n"
        "try: import wima.flower\n"
        "except wima.UsageError as error: print(error)\n"
    )
    imported, message = printed(code).splitlines()
    assert imported == "False" and "pip install 'wima[flower]'" in message


PUBLIC = ("app", "clientapp", "serverapp", "server", "common")  # of flwr


def test_what_is_not_public_in_flower_is_imported_in_one_module():
    for path in (ROOT / "wima" / "flower").rglob("*.py"):
        modules = re.findall(r"from flwr\.([\w.]+) import", path.read_text(encoding="utf-8"))
        inside = [name for name in modules if name.split(".")[0] not in PUBLIC]
        inside += [name for name in modules if name.startswith("common.")]
        assert not inside or path.name == "grid.py"


def test_a_flower_that_has_changed_inside_is_named_with_the_tested_versions():
    code = (
        "from wima.core.errors import UsageError\n"
        "from wima.flower import averaged, server_app  # need nothing from inside\n"
        "import flwr.supercore.task_identity as moved\n"
        "del moved.TaskIdentity\n"
        "try: import wima.flower.grid\n"
        "except UsageError as error: print(error)\n"
    )
    message = printed(code)
    assert f"tested with flwr {TESTED}; this is flwr {version('flwr')}" in message
    assert "TaskIdentity" in message and "pip install 'flwr~=" in message

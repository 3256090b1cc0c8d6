"""Nodes come and go, fail, answer late, or are not who they should be; the run goes on."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from tests.helpers.federations import SIZES, FaultyGrid, assert_models, over, settings_of, simulated
from wima.core.errors import RunError, UsageError
from wima.core.signals import Interrupted
from wima.runs.launch import resume


def test_a_node_that_lost_its_memory_is_reinitialised_with_a_warning(tmp_path, caplog):
    settings = settings_of(tmp_path, algorithm="scaffold", clients_per_round=5)
    grid = FaultyGrid()

    def forget(node, message, reply):
        if message.metadata.group_id == "2" and node == 102:
            grid.nodes[102].context.state.clear()
        return reply

    grid.spoil = forget
    _, run = over(grid, settings, tmp_path / "run")
    assert run.status["state"] == "done"
    assert "memory of the visit in round 2 is lost" in caplog.text


def test_nodes_come_and_go_between_rounds(tmp_path, caplog):
    settings = settings_of(tmp_path, clients_per_round=5, algorithm="scaffold", rounds=6)
    grid = FaultyGrid()
    parked = {104: grid.nodes.pop(104)}

    def move(node, message, reply):
        if message.metadata.group_id == "2":
            parked.update({101: grid.nodes.pop(101)} if 101 in grid.nodes else {})
        if message.metadata.group_id == "4":
            grid.nodes.update(parked)
        return reply

    grid.spoil = move
    _, run = over(grid, settings, tmp_path / "run", start_nodes=4)
    cohorts = [r.cohort for r in run.records]
    everyone = list(range(5))
    assert cohorts == [[0, 1, 2, 3]] * 2 + [[0, 2, 3]] * 2 + [everyone] * 2
    assert "Node 101 (client 1) left" in caplog.text


def test_a_node_lost_in_a_round_is_left_out_of_it(tmp_path, caplog):
    settings = settings_of(tmp_path, clients_per_round=5, rounds=3)
    grid = FaultyGrid()

    def fail(node, message, reply):
        lost = message.metadata.group_id == "2" and node == 103
        return None if lost else reply

    grid.spoil = fail
    _, run = over(grid, settings, tmp_path / "run", round_seconds=0.2)
    assert [r.excluded for r in run.records] == [(), (3,), ()]
    assert [len(r.cohort) for r in run.records] == [5, 5, 4]  # its answer is still owed
    assert "node 103 (client 3) is left out: no reply within 0.2 s" in caplog.text


def test_a_late_answer_brings_a_node_back_but_is_not_used(tmp_path):
    settings = settings_of(tmp_path, clients_per_round=5, rounds=4, algorithm="scaffold")
    grid, held = FaultyGrid(), []

    def delay(node, message, reply):
        if message.metadata.group_id == "2" and node == 103:
            held.append(reply)
            return None
        if message.metadata.group_id == "3" and held:
            late = held.pop()
            grid.deliver(late)
        return reply

    grid.spoil = delay
    _, run = over(grid, settings, tmp_path / "run", round_seconds=0.2)
    assert [len(r.cohort) for r in run.records] == [5, 5, 4, 5]


def test_too_few_nodes_end_the_run_with_advice(tmp_path):
    settings = settings_of(tmp_path)
    with pytest.raises(RunError, match=r"for 5 nodes, but 4 are connected.*start-nodes"):
        over(FaultyGrid(clients=4), settings, tmp_path / "run", wait_seconds=0.1)


def test_nodes_that_fail_in_every_round_end_the_run(tmp_path):
    settings = settings_of(tmp_path, rounds=9)
    grid = FaultyGrid(data=str(tmp_path / "no-such.npz"))
    with pytest.raises(RunError, match="No client sent a usable update in 3 consecutive rounds"):
        over(grid, settings, tmp_path / "run")
    with pytest.raises(UsageError, match=r"engine 'flower'.*the way it was started"):
        resume(tmp_path / "run")


def test_two_nodes_of_one_client_count_once_and_strangers_not_at_all(tmp_path, caplog):
    settings = settings_of(tmp_path, clients_per_round=5)
    grid = FaultyGrid(clients=len(SIZES) + 2)
    grid.nodes[105].context.node_config["partition-id"] = 1
    grid.nodes[106].context.node_config["partition-id"] = 77
    _, expected = simulated(settings)
    _, run = over(grid, settings, tmp_path / "run")
    assert_models(run, settings, expected)
    assert "Node 105 claims to be client 1, as node 101 did before" in caplog.text
    assert "Node 106 did not say which client it is" in caplog.text


IMPOSTOR = 50  # a smaller number than that of any honest node


def let_in(grid: FaultyGrid, client: int) -> None:
    """Let a node in that says it is this client, and is listed before all others."""
    node = FaultyGrid(clients=client + 1).nodes[100 + client]
    grid.nodes = {IMPOSTOR: node, **grid.nodes}


def trained(grid: FaultyGrid, node: int) -> int:
    return sum(sent == (node, "train") for sent in grid.sent)


def test_a_node_that_claims_a_client_later_does_not_take_its_place(tmp_path, caplog):
    settings = settings_of(tmp_path, clients_per_round=5)
    grid = FaultyGrid()

    def join(node, message, reply):
        if message.metadata.group_id == "2" and IMPOSTOR not in grid.nodes:
            let_in(grid, client=1)
        return reply

    grid.spoil = join
    _, run = over(grid, settings, tmp_path / "run")
    assert "Node 50 claims to be client 1, as node 101 did before" in caplog.text
    assert trained(grid, 101) == settings.rounds and not trained(grid, IMPOSTOR)
    assert_models(run, settings, simulated(settings)[1])


def test_nor_does_it_after_a_restart_of_the_server(tmp_path):
    settings = settings_of(tmp_path, clients_per_round=5)

    def kill(node, message, reply):
        if message.metadata.group_id == "3":
            raise KeyboardInterrupt
        return reply

    grid = FaultyGrid(kill)
    with pytest.raises(Interrupted):
        over(grid, settings, tmp_path / "run")
    grid = FaultyGrid()
    let_in(grid, client=1)
    _, run = over(grid, settings, tmp_path / "run")
    assert trained(grid, 101) == 3 and not trained(grid, IMPOSTOR)
    assert_models(run, settings, simulated(settings)[1])


def test_a_second_node_takes_part_while_the_first_is_away_but_not_while_it_is_busy(tmp_path):
    settings = settings_of(tmp_path, clients_per_round=5, rounds=8)
    grid, held = FaultyGrid(clients=len(SIZES) + 1), []
    grid.nodes[105].context.node_config["partition-id"] = 1

    def move(node, message, reply):
        t = message.metadata.group_id
        if (node, t) == (101, "2"):
            held.append(reply)
            return None  # busy in round 3
        if t == "3" and held:
            late = held.pop()
            grid.deliver(late)
        if t == "4" and 101 in grid.nodes:
            held.append(grid.nodes.pop(101))  # away from round 5 on
        if t == "6" and held:
            grid.nodes[101] = held.pop()
        return reply

    grid.spoil = move
    _, run = over(grid, settings, tmp_path / "run", round_seconds=0.2)
    assert [r.t for r in run.records if 1 not in r.cohort] == [3]
    assert trained(grid, 105) == 2  # rounds 5 and 6
    assert trained(grid, 101) == 5


def test_a_node_without_partition_id_is_told_what_to_do(tmp_path, caplog):
    grid = FaultyGrid()
    del grid.nodes[100].context.node_config["partition-id"]
    settings = settings_of(tmp_path)
    over(grid, settings, tmp_path / "run", start_nodes=4)
    assert "--node-config 'partition-id=0'" in caplog.text

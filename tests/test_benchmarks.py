"""The benchmark harness: that it runs and reports; how fast things are is not judged here."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import environments
from benchmarks.__main__ import arguments, compare
from benchmarks.drive import Contestant, Failed, interleave
from benchmarks.environments import versions
from benchmarks.memory import resident, tree
from benchmarks.micro import measure
from benchmarks.models import make_model, make_tuned
from benchmarks.peers import PEERS
from benchmarks.pictures import best
from benchmarks.report import document, markdown, number, write
from benchmarks.workloads import CHECK, CLIENTS, WORKLOADS, generate, load, prepare

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the harness measures memory from /proc"
)
ORIGIN = {
    "machine": "a box",
    "python": "3.11",
    "torch": "2.13",
    "wima": "abc",
    "command": "python -m benchmarks ...",
    "date": "2026-01-01",
}
WAITS = (
    "import json, sys\n"
    "print(json.dumps({'rounds': 1, 'seconds': 1.0, 'loss': 2.0}), flush=True)\n"
    "for line in sys.stdin:\n"
    "    turn = json.loads(line)\n"
    "    seconds = (2.0 + turn['evaluate']) * turn['rounds']\n"
    "    print(json.dumps({'seconds': seconds, 'loss': 1.0}), flush=True)\n"
)


def peer(seconds: list[float], **more: float | None) -> dict:
    return {"seconds": seconds, "seconds_evaluating": [2 * s for s in seconds], **more}


def made_up(name: str = "femnist") -> dict:
    peers = {
        "bare": peer([2.0, 2.2, 2.1], startup=1.0, peak_bytes=3e8, loss=None),
        "flower": peer([4.0, 4.4, 4.2], startup=14.2, peak_bytes=2e9, loss=1.5),
        "fluke": {"failed": "not installed: ERROR: No matching distribution"},
    }
    text = {"title": f"{name}: a model", "text": "Ten clients."}
    return {"kind": "peers", "name": name, **text, "peers": peers, "origin": ORIGIN}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WIMA_BENCHMARKS", str(tmp_path))
    return tmp_path


def test_all_peers_train_on_the_same_arrays(cache: Path) -> None:
    prepare("digits")
    made, mapped = generate(WORKLOADS["digits"]), load("digits")
    for a, b in zip(made, mapped, strict=True):
        np.testing.assert_array_equal(a, b)
    x, y = mapped.client(3)
    assert x.shape == (15, 1, 8, 8) and y.shape == (15,)
    np.testing.assert_array_equal(x, made.x[45:60])


@pytest.mark.parametrize("name", ["digits", "femnist", "shakespeare"])
def test_workloads_have_the_shapes_of_their_models(name: str) -> None:
    workload = WORKLOADS[name]
    data = generate(workload)
    assert data.x.shape == (CLIENTS * workload.samples, *workload.shape)
    assert len(data.x_check) == len(data.y_check) == CHECK
    assert data.y.shape == (data.x.shape if workload.sequences else data.x.shape[:1])
    assert data.y.min() >= 0 and data.y.max() < workload.classes


def test_characters_follow_from_each_other_half_of_the_time() -> None:
    data = generate(WORKLOADS["shakespeare"])
    assert data.x.min() >= 1, "0 is padding"
    np.testing.assert_array_equal(data.x[:, 1:], data.y[:, :-1])
    pairs = np.zeros((90, 90), int)
    np.add.at(pairs, (data.x, data.y), 1)
    assert 0.45 < pairs.max(axis=1).sum() / pairs.sum() < 0.6


@pytest.mark.world
@pytest.mark.slow
def test_ours_bare_and_naive_do_the_same_work(cache: Path) -> None:
    peers, size = "bare,naive,ours-serial", ["--turns", "1", "--rounds", "3", "--cold"]
    asked = arguments(["--workload", "digits", "--peer", peers, *size])
    result = compare(asked)
    peers = result["peers"]
    assert list(peers) == ["bare", "naive", "ours-serial"]
    for measured in peers.values():
        assert len(measured["seconds"]) == len(measured["seconds_evaluating"]) == 1, peers
        assert measured["peak_bytes"] > 0
    # The same initial model and data, four rounds; only cohorts and orders differ.
    assert peers["naive"]["loss"] == pytest.approx(peers["ours-serial"]["loss"], rel=0.02)
    assert "| ours-serial |" in markdown(result)


def test_turns_alternate_and_a_peer_that_fails_does_not_stop_the_others() -> None:
    commands = {
        "good": [sys.executable, "-c", WAITS],
        "never": [sys.executable, "-c", "raise ValueError('no such thing')"],
        "once": [sys.executable, "-c", WAITS.replace("for line in sys.stdin", "for line in []")],
    }
    results = interleave(commands, turns=2, rounds=5, warm_up=False)
    assert results["good"]["seconds"] == [2.0, 2.0] and results["good"]["loss"] == 1.0
    assert results["good"]["seconds_evaluating"] == [3.0, 3.0]
    assert results["never"] == {"failed": "ValueError: no such thing"}
    assert "failed" in results["once"]


def test_a_contestant_sleeps_between_turns_and_leaves_nothing_behind() -> None:
    with closing(Contestant([sys.executable, "-c", WAITS])) as contestant:
        pid, until = contestant._process.pid, time.monotonic() + 10
        while _state(pid) != "T" and time.monotonic() < until:
            time.sleep(0.01)
        assert _state(pid) == "T"
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(Failed):
        Contestant([sys.executable, "-c", ""])


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_memory_is_that_of_the_whole_tree() -> None:
    with closing(Contestant([sys.executable, "-c", WAITS])) as contestant:
        child, family = contestant._process.pid, tree(os.getpid())
        assert child in family
        assert resident(family) > resident([child]) > 0


def test_the_table_has_ratios_by_turn_and_says_who_is_missing() -> None:
    text = markdown(made_up())
    assert "| bare | 2.1 |  | 4.2 |  | 1.0 | 300 |  |  |" in text
    assert "| flower | 4.2 |  | 8.4 |  | 14.2 | 2000 | 1.500 |  |" in text
    result = made_up()
    result["peers"]["ours-auto"] = peer([2.0, 1.1, 2.1], startup=1, peak_bytes=1, loss=1)
    turns = "2.00 (2.00 to 4.00)"  # 4.0 / 2.0, 4.4 / 1.1, 4.2 / 2.1
    assert f"| flower | 4.2 | {turns} | 8.4 | {turns} | 14.2 |" in markdown(result)
    assert "fluke did not run: not installed: ERROR: No matching distribution" in text
    assert "`python -m benchmarks ...`" in text and "2026-01-01" in text


def test_numbers_have_three_digits_that_matter() -> None:
    values = (0.00123456, 0.1, 1.874, 12.345, 123.4, 2100, 0)
    shown = ["0.00123", "0.1", "1.87", "12.3", "123", "2100", "0"]
    assert [number(value) for value in values] == shown


def test_the_document_is_made_from_the_json_files(tmp_path: Path) -> None:
    micro = {
        "kind": "micro",
        "name": "windows",
        "title": "Averaging",
        "text": "",
        "tables": [{"columns": ["W", "ms"], "rows": [["10", "0.5"]]}],
        "origin": ORIGIN,
    }
    for result in (micro, made_up("shakespeare"), made_up("digits")):
        write(result, tmp_path / "results" / f"{result['name']}.md")
        assert json.loads((tmp_path / "results" / f"{result['name']}.json").read_text()) == result
    document(tmp_path / "results", tmp_path / "benchmarks.md")
    text = (tmp_path / "benchmarks.md").read_text()
    places = [text.index(f"## {title}") for title in ("digits", "shakespeare", "Averaging")]
    assert places == sorted(places)
    assert "| 10 | 0.5 |" in text
    for name in ("benchmarks-digits.png", "benchmarks-shakespeare.png", "speed.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert name == "speed.png" or f"]({name})" in text


def test_a_simulator_is_shown_at_its_best() -> None:
    peers = {name: peer([s]) for name, s in {"ours-auto": 2, "pfl1": 6, "pfl2": 3}.items()}
    peers |= {"flower": peer([8.0]), "fluke": {"failed": "no"}, "bare": peer([1.0])}
    assert best(peers) == {"pfl-research": (1.5, 1.5, 1.5), "Flower": (4, 4, 4)}


def test_every_peer_has_a_script_and_pinned_versions() -> None:
    folder = Path(environments.__file__).parent / "peers"
    for peer in PEERS.values():
        assert (folder / f"{peer.script}.py").is_file()
        assert versions(peer.environment)


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--workload", "digits", "--peer", "flour"])
    assert "unknown peer 'flour'; known: ours-auto" in capsys.readouterr().err


def test_small_measurements_are_made() -> None:
    result = measure("windows", 1, parameters=100, lengths=(3, 30))
    assert [row[0] for row in result["tables"][0]["rows"]][1:] == ["W = 3", "W = 30"]
    assert markdown(result).startswith("## Averaging")
    result = measure("buckets", 1, parameters=100, models=50)
    assert len(result["tables"][0]["rows"]) == 3
    result = measure("loop", 1, parameters=10_000, windows=(3, 50))
    names = [row[0] for row in result["tables"][0]["rows"]]
    assert names[:3] == ["copy", "W = 3, in memory", "W = 50, in memory"] and len(names) == 9
    assert float(result["tables"][0]["rows"][0][3]) == 1  # the copy, over itself
    result = measure("detail", 1, images=32, each=4)
    assert len(result["tables"][0]["rows"]) == 4


@pytest.mark.lab
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("average_files", {"files": 3, "unit": 10}),
        ("clients", {"counts": (100,)}),
        ("distributed", {"names": ("digits",)}),
        ("report", {"runs": 2, "rounds": 20}),
        ("startup", {}),
    ],
)
def test_commands_and_players_are_measured(cache: Path, name: str, options: dict) -> None:
    rows = measure(name, 1, **options)["tables"][0]["rows"]
    assert not [row for row in rows if row[1] == "failed" or not float(row[1])]


def test_the_window_that_chooses_itself_is_measured_in_a_loop(monkeypatch) -> None:
    from benchmarks import loops

    monkeypatch.setattr(loops, "LOOPS", {"SGD": loops.LOOPS["SGD"]})
    result = loops.measure(1, epochs=1)
    assert [row[0] for row in result["tables"][0]["rows"]] == ["SGD"]


@pytest.mark.parametrize("name", ["digits", "femnist", "cifar"])
def test_peers_train_the_function_that_wima_trains(name):
    data = generate(replace(WORKLOADS[name], samples=1))
    x = torch.from_numpy(data.x_check[:8])
    with torch.no_grad():
        stock, tuned = (make(name).eval()(x) for make in (make_model, make_tuned))
    torch.testing.assert_close(stock, tuned, rtol=1e-4, atol=1e-5)

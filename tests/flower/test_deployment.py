"""A federation of real processes on loopback: TLS, authenticated nodes, failures, a restart."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from safetensors.torch import load_file

from tests.helpers.flower_processes import (
    BIN,
    Programs,
    command_of,
    descendants,
    free_port,
    kill,
    listens,
    write_certificates,
    write_key,
)
from tests.helpers.paths import ROOT
from tests.helpers.waiting import rounds_recorded
from wima.runs.build import build_task
from wima.runs.run import Run, read_run
from wima.storage import manifests
from wima.storage.segments import Segments

ROUNDS, WINDOW, CLIENTS = 5, 3, 4  # every visit is a new process of Flower's
SETTINGS = (
    f"clients={CLIENTS} clients_per_round=2 alpha=1.0 algorithm=scaffold rounds={ROUNDS} "
    f"window={WINDOW} lr=0.1 batch_size=5 epochs=3 seed=42"
)  # the seed draws client 1 in rounds 1 and 2, and client 3, once it is there, from round 3 on
PATIENCE = 240  # seconds for a step that takes ten on a free machine
pytestmark = [
    pytest.mark.slow,
    pytest.mark.world,
    pytest.mark.skipif(not (BIN / "flower-superlink").exists(), reason="Flower is not installed"),
]


class Deployment:
    """A SuperLink and its SuperNodes."""

    def __init__(self, programs: Programs) -> None:
        self.programs, self.folder, self.port = programs, programs.folder, free_port()
        write_certificates(self.folder)
        self.run_folder = self.folder / "run"
        self.superlink = programs.start(
            "superlink",
            "flower-superlink",
            *("--host", "127.0.0.1", "--port", str(self.port), "--enable-supernode-auth"),
            *("--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem"),
            *("--ssl-keyfile", "server.key", "--disable-runtime-dependency-installation"),
        )
        certificate = f'root-certificates = "{self.folder / "ca.pem"}"'
        programs.connect(self.port, certificate)
        programs.wait_for(lambda: listens(self.port), PATIENCE, "the SuperLink's port")

    def register(self, names: list[str]) -> None:
        """Tell the SuperLink the public keys of nodes."""
        for name in names:
            write_key(self.folder, name)
        calls = [
            self.programs.start(
                f"register-{name}", "flwr", "supernode", "register", f"{name}.pub", "test"
            )
            for name in names
        ]
        assert [call.wait(PATIENCE) for call in calls] == [0] * len(names), self.programs.logs()

    def node(self, name: str, *options: str) -> subprocess.Popen:
        return self.programs.start(
            name,
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())),
            *("--host", "127.0.0.1", *options),
        )

    def client(self, i: int) -> subprocess.Popen:
        """A node that may take part."""
        config = f'partition-id={i} memory="{self.folder / "memory"}"'
        key = f"node-{i}"
        trust = ("--root-certificates", "ca.pem", "--auth-supernode-private-key", key)
        return self.node(key, *trust, "--node-config", config)

    def run(self) -> None:
        """`flwr run` of the example app."""
        config = (
            f'overrides="{SETTINGS}" out="{self.run_folder}" start-nodes=3 min-nodes=2 '
            f"round-seconds={PATIENCE}.0 wait-seconds={PATIENCE}.0"
        )
        app = str(ROOT / "examples" / "flower")
        call = self.programs.start("flwr-run", "flwr", "run", app, "test", "--run-config", config)
        assert call.wait(PATIENCE) == 0, self.programs.logs()

    def done(self) -> int:
        """Rounds recorded so far."""
        return rounds_recorded(self.run_folder)

    def wait_for_rounds(self, count: int) -> None:
        for t in range(self.done() + 1, count + 1):
            self.programs.wait_for(lambda t=t: self.done() >= t, PATIENCE, f"round {t}")

    def took_part(self, client: int) -> bool:
        """Whether an update of the client counted in a round so far."""
        return any(client in clients for clients in counted(read_run(self.run_folder)))

    def kill_server_app(self) -> None:
        apps = [p for p in descendants(self.superlink.pid) if "flwr-serverapp" in command_of(p)]
        assert apps
        for pid in apps:
            kill(pid)

    def asked(self, name: str) -> int:
        """How often a node was asked to train."""
        return self.programs.log(name).count("Receiving: train message")

    def finished(self) -> bool:
        status = json.loads((self.run_folder / "status.json").read_text())
        return status["state"] == "done"


@pytest.mark.timeout(1200)
def test_scaffold_with_a_window_survives_nodes_and_server(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        here = Deployment(programs)
        here.register([f"node-{i}" for i in range(CLIENTS)])
        nodes = [here.client(i) for i in range(3)]
        here.run()
        here.wait_for_rounds(1)
        here.client(3)  # joins late
        programs.wait_for(lambda: here.asked("node-1") > 1, PATIENCE, "more work for node 1")
        nodes[1].terminate()  # while it trains
        left_in = here.done()
        refused = refuse(here)
        here.wait_for_rounds(3)
        programs.wait_for(lambda: here.took_part(3), PATIENCE, "an update of client 3")
        here.kill_server_app()  # nodes that it had asked are busy for half a minute
        before = here.run_folder.joinpath("records.jsonl").read_bytes()
        here.run()
        here.wait_for_rounds(ROUNDS)
        programs.wait_for(here.finished, PATIENCE, "the end of the run")
        check_refused(here, refused)
    check_run(here.run_folder, before, left_in)


def refuse(here: Deployment) -> dict[str, subprocess.Popen]:
    """Nodes that must not take part: no key, an unknown key, no trust in the server."""
    write_key(here.folder, "stranger-key")
    trust = ("--root-certificates", "ca.pem", "--max-retries", "1")
    stranger = ("--auth-supernode-private-key", "stranger-key")
    other = ("--root-certificates", "other-ca.pem", "--max-retries", "1")
    known = ("--auth-supernode-private-key", "node-1")
    return {
        "keyless": here.node("keyless", *trust),
        "stranger": here.node("stranger", *trust, *stranger),
        "wrong-certificate": here.node("wrong-certificate", *other, *known),
    }


def check_refused(here: Deployment, refused: dict[str, subprocess.Popen]) -> None:
    for name, node in refused.items():
        assert node.wait(PATIENCE) != 0
        told = here.programs.log(name)
        assert "Failed to initialize the connection to the SuperLink" in told
        assert "SuperNode ID" not in told
    assert "CERTIFICATE_VERIFY_FAILED" in here.programs.log("wrong-certificate")


def counted(run: Run) -> list[set[int]]:
    """The clients whose updates counted, by round."""
    return [set(r.cohort) - set(r.excluded) for r in run.records]


def check_run(folder: Path, before: bytes, left_in: int) -> None:
    """All rounds, one window over the last of them, models that evaluate as reported."""
    run = read_run(folder)
    assert [record.t for record in run.records] == list(range(1, ROUNDS + 1))
    assert (folder / "records.jsonl").read_bytes().startswith(before)
    assert 1 in counted(run)[0]
    assert all(1 not in clients for clients in counted(run)[left_in + 1 :])
    assert any(3 in clients for clients in counted(run))  # the seed draws it, once it is there
    store = Segments(folder / "checkpoints")
    (newest, *_), wrong = manifests.find(store)
    assert not wrong
    ring = newest.content["rings"]["past"]
    assert ring["count"] == ROUNDS
    past = {n: store.read(name, str(n)) for name in ring["segments"] for n in store.about(name)}
    last = [past[n] for n in range(ROUNDS - WINDOW, ROUNDS)]
    task = build_task(run.settings)
    assert task.layout is not None
    for name, expected in (("plain", last[-1]), (f"wima{WINDOW}", torch.stack(last).mean(0))):
        tensors = load_file(folder / "models" / f"{name}.safetensors")
        w = torch.cat([tensors[key].reshape(-1) for key in task.layout.slices])
        torch.testing.assert_close(w, expected, rtol=1e-5, atol=1e-6)
        assert task.evaluate(w) == pytest.approx(run.records[-1].metrics[name], abs=1e-6)
    assert run.records[-1].metrics[f"wima{WINDOW}"]["accuracy"] > 0.5

"""Flower's simulation engine runs the example app, and `wima flower run` any settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from tests.helpers.commands import WIMA
from tests.helpers.flower_processes import BIN, Programs, free_port, listens
from tests.helpers.paths import ROOT
from wima.runs.build import build
from wima.runs.folder import read_run
from wima.runs.settings import load_settings

QUICK = ["clients=4", "clients_per_round=2", "rounds=3", "window=2"]
QUICK += ["algorithm=scaffold", "alpha=1.0"]
PATIENCE = 240  # seconds for what takes thirty on a free machine
pytestmark = [
    pytest.mark.slow,
    pytest.mark.world,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not (BIN / "flower-superlink").exists(), reason="Flower is not installed"),
]


def assert_as_simulated(folder: Path) -> None:
    """Cohorts and metrics are those of the simulator with the same settings."""
    run = read_run(folder)
    with build(load_settings("digits", [*QUICK, "engine=serial"])) as simulation:
        records = list(simulation)
    assert run.status["state"] == "done"
    assert [r["cohort"] for r in run.records] == [r.cohort for r in records]
    for found, record in zip(run.records, records, strict=True):
        for name in ("plain", "wima2"):
            assert found["metrics"][name] == pytest.approx(record.metrics[name], abs=1e-5)


def test_the_example_app_runs_on_the_simulation_engine(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "run"
    with Programs(tmp_path) as programs:
        programs.start(
            "superlink",
            "flower-superlink",
            *("--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)),
        )
        programs.connect(port, "insecure = true")
        programs.wait_for(lambda: listens(port), PATIENCE, "the SuperLink's port")
        config = f'overrides="{" ".join(QUICK)}" out="{out}"'
        app = str(ROOT / "examples" / "flower")
        nodes = "num-supernodes=4 client-resources-num-cpus=1"
        call = programs.start(
            "flwr-run",
            *("flwr", "run", app, "test", "--run-config", config, "--federation-config", nodes),
        )
        assert call.wait(PATIENCE) == 0, programs.logs()

        def finished() -> bool:
            status = out / "status.json"
            return status.exists() and json.loads(status.read_text())["state"] != "running"

        programs.wait_for(finished, PATIENCE, "the end of the run")
    assert_as_simulated(out)


def test_wima_flower_run_gives_what_wima_run_gives(tmp_path: Path) -> None:
    with Programs(tmp_path) as programs:
        arguments = ("flower", "run", "digits", *QUICK, "--out", "run")
        call = programs.start("run", *WIMA, *arguments)
        assert call.wait(PATIENCE) == 0, programs.logs()
        assert "wima2" in programs.log("run")
    assert_as_simulated(tmp_path / "run")


def test_wima_flower_run_tells_a_users_mistake_without_a_traceback(cli) -> None:
    code, _, err = cli("flower", "run", "digits", "algorithm=scafold")
    assert code == 2
    assert "did you mean 'scaffold'" in err
    assert "Traceback" not in err

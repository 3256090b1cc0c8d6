"""The example app and `wima flower run` simulate on this machine, without Flower's own engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from tests.helpers.commands import environment, printed, shell
from tests.helpers.paths import ROOT
from wima.runs.build import build
from wima.runs.run import read_run
from wima.runs.settings import load_settings

EXAMPLE = ROOT / "examples" / "flower"
TWO = ["clients=2", "clients_per_round=1", "rounds=3", "window=2", "alpha=0.5"]
QUICK = ["clients=4", "clients_per_round=2", "rounds=3", "window=2"]
QUICK += ["algorithm=scaffold", "alpha=1.0"]


def assert_as_simulated(folder: Path, overrides: list[str]) -> None:
    """Cohorts and metrics are those of the simulator with the same settings."""
    run = read_run(folder)
    with build(load_settings("digits", [*overrides, "engine=serial"])) as simulation:
        records = list(simulation)
    assert run.status["state"] == "done"
    assert [r.cohort for r in run.records] == [r.cohort for r in records]
    for line, record in zip(run.records, records, strict=True):
        for name in ("plain", "wima2"):
            assert line.metrics[name] == pytest.approx(record.metrics[name], abs=1e-5)


def test_the_example_app_is_simulated_by_its_script(tmp_path: Path) -> None:
    script = [sys.executable, str(EXAMPLE / "simulate.py")]
    done = subprocess.run(
        [*script, f"overrides={' '.join(TWO)}", "out=run"],
        cwd=tmp_path,
        env=environment(FLWR_TELEMETRY_ENABLED="0"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Round 3: " in done.stdout and "plain.safetensors, wima2.safetensors" in done.stdout
    assert_as_simulated(tmp_path / "run", TWO)


@pytest.mark.parametrize("workers", [1, 2])
def test_wima_flower_run_gives_what_wima_run_gives(workers: int, tmp_path: Path) -> None:
    arguments = ("flower", "run", "digits", *QUICK, f"workers={workers}", "--out", "run")
    done = shell(*arguments, cwd=tmp_path, FLWR_TELEMETRY_ENABLED="0")
    assert done.returncode == 0, done.stderr
    assert "wima2" in done.stdout
    assert_as_simulated(tmp_path / "run", QUICK)


def test_wima_flower_run_tells_a_users_mistake_without_a_traceback(cli) -> None:
    code, _, err = cli("flower", "run", "digits", "algorithm=scafold")
    assert code == 2
    assert "did you mean 'scaffold'" in err
    assert "Traceback" not in err


def test_nothing_needs_ray() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from wima.flower import LocalGrid, averaged, averaged_legacy, client_app, server_app\n"
        "print(sorted(name for name in sys.modules if name.startswith('flwr.simulation')))"
    )
    assert printed(code, FLWR_TELEMETRY_ENABLED="0").strip() == "[]"

"""TensorBoard, MLflow and W&B themselves, read back; no network."""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers.interrupted import after_round, killed_after, outcome
from tests.helpers.tracked import numbers, settings_of
from wima.core.errors import RunError
from wima.core.signals import Interrupted
from wima.runs.launch import Runner, launch, resume
from wima.runs.run import read_run
from wima.runs.track import export, hyperparameters, identity

needs = {
    name: pytest.mark.skipif(find_spec(name) is None, reason=f"the package {name} is missing")
    for name in ("tensorboard", "mlflow", "wandb")
}
TRACKERS = [pytest.param(name, marks=needs[name]) for name in needs]
# Of packages that are not ours.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> str:
    """Of MLflow, which takes seconds to make one."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch, database) -> Iterator[None]:
    """Where trackers write, by their own variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(Runner, "append", Runner.append)  # restored when a test replaced it
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()  # else a child would share this process's service


def from_tensorboard(path: Path) -> dict[str, dict[int, float]]:
    """All scalars, read with TensorBoard's own reader; a round that is there twice is refused."""
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(path / "tensorboard"), {SCALARS: 0}).Reload()
    found = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    return {name: once((e.step, e.value) for e in values) for name, values in found.items()}


def mlflow_run(path: Path):
    """MLflow's only run of that name."""
    import mlflow

    client = mlflow.MlflowClient()
    name = os.environ["MLFLOW_EXPERIMENT_NAME"]
    experiment = client.get_experiment_by_name(name).experiment_id
    (run,) = (r for r in client.search_runs([experiment]) if r.info.run_name == path.name)
    return client, run


def from_mlflow(path: Path) -> dict[str, dict[int, float]]:
    client, run = mlflow_run(path)
    found = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: once((m.step, m.value) for m in values) for name, values in found.items()}


def from_wandb(path: Path) -> dict[str, dict[int, float]]:
    """The rows of the newest offline run."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in wandb_records(path):
        items = {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.history.item
        }
        for name, value in items.items():
            if not name.startswith("_"):
                found.setdefault(name, []).append((items["_step"], value))
    return {name: once(values) for name, values in found.items()}


def wandb_records(path: Path) -> Iterator:
    """What the newest offline run holds: blocks of a LevelDB log with W&B's own messages."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its service writes files after `finish` returned
    (file,) = newest_wandb(path).glob("*.wandb")
    data, place, parts = file.read_bytes(), 7, b""
    while place < len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def newest_wandb(path: Path) -> Path:
    return max((path / "wandb").glob("offline-run-*"))


def once(points) -> dict[int, float]:
    points = list(points)
    steps = [step for step, _ in points]
    assert len(steps) == len(set(steps))
    return dict(points)


READ = {"tensorboard": from_tensorboard, "mlflow": from_mlflow, "wandb": from_wandb}


def assert_has_all(name: str, path: Path) -> None:
    found, expected = READ[name](path), numbers(path)
    # A round that was played twice took another time.
    assert list(found.pop("seconds")) == list(expected.pop("seconds"))
    assert set(found) == set(expected)
    for tag, values in expected.items():
        assert found[tag] == pytest.approx(values, rel=2**-23)  # TensorBoard has float32


@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracked_run_is_recorded_and_has_the_same_bytes(name, plain, tmp_path, capfd):
    launch(settings_of(trackers=[name]), tmp_path / "r")
    assert outcome(tmp_path / "r") == outcome(plain)
    assert "Warning" not in capfd.readouterr().err
    assert_has_all(name, tmp_path / "r")


@pytest.mark.parametrize("name", TRACKERS)
def test_an_interrupted_run_goes_on_without_a_round_twice(name, plain, tmp_path, capfd):
    def interrupt() -> None:
        raise KeyboardInterrupt

    after_round(8, interrupt)  # trackers know of 7 rounds, the checkpoint of 5
    with pytest.raises(Interrupted):
        launch(settings_of(trackers=[name]), tmp_path / "r")
    resume(tmp_path / "r")
    assert "Warning" not in capfd.readouterr().err
    assert_has_all(name, tmp_path / "r")
    assert outcome(tmp_path / "r") == outcome(plain)


@pytest.mark.parametrize("name", TRACKERS)
def test_rounds_that_a_killed_process_kept_back_are_made_up_for(name, plain, tmp_path, capfd):
    killed_after(8, settings_of(trackers=[name]), tmp_path / "r")
    resume(tmp_path / "r")
    assert "Warning" not in capfd.readouterr().err
    assert_has_all(name, tmp_path / "r")
    assert outcome(tmp_path / "r") == outcome(plain)


@pytest.mark.parametrize("name", TRACKERS)
def test_an_export_gives_the_same_however_often(name, plain, tmp_path):
    path = tmp_path / "r"
    path.mkdir()
    for file in plain.iterdir():
        if file.is_file():
            (path / file.name).write_bytes(file.read_bytes())
    for _ in range(2):
        list(export([path], [name]))
    assert_has_all(name, path)


@needs["tensorboard"]
def test_tensorboard_has_settings_and_environment(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.metadata import (
        SESSION_START_INFO_TAG,
        parse_session_start_info_plugin_data as parse,
    )

    path = tmp_path / "r"
    settings = settings_of(trackers=["tensorboard"])
    launch(settings, path)
    events = EventAccumulator(str(path / "tensorboard")).Reload()
    begin = parse(events.PluginTagToContent("hparams")[SESSION_START_INFO_TAG])
    given = {name: getattr(v, v.WhichOneof("kind")) for name, v in begin.hparams.items()}
    assert given == hyperparameters(settings)
    (event,) = events.Tensors("environment/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert f"torch: {read_run(path).environment['torch']}" in text


@needs["mlflow"]
def test_mlflow_has_settings_environment_and_the_end(tmp_path):
    settings = settings_of(trackers=["mlflow"])
    launch(settings, tmp_path / "r")
    _, run = mlflow_run(tmp_path / "r")
    assert run.data.params == {n: str(v) for n, v in hyperparameters(settings).items()}
    assert run.data.tags["environment.torch"] == read_run(tmp_path / "r").environment["torch"]
    assert (run.data.tags["state"], run.info.status) == ("done", "FINISHED")


@needs["mlflow"]
def test_mlflow_tells_runs_that_failed_from_those_that_were_interrupted(tmp_path):
    with pytest.raises(RunError):
        launch(settings_of(trackers=["mlflow"], lr=1e6, diverged=10.0), tmp_path / "r")
    assert mlflow_run(tmp_path / "r")[1].info.status == "FAILED"
    killed_after(3, settings_of(), tmp_path / "killed")
    list(export([tmp_path / "killed"], ["mlflow"]))
    assert mlflow_run(tmp_path / "killed")[1].info.status == "KILLED"


@needs["mlflow"]
def test_a_tracking_server_that_cannot_be_used_does_not_hurt(plain, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    launch(settings_of(trackers=["mlflow"]), tmp_path / "r")
    assert capsys.readouterr().err.count("Warning: the tracker mlflow failed") == 1
    assert outcome(tmp_path / "r") == outcome(plain)


@needs["wandb"]
def test_wandb_has_name_settings_and_the_end(tmp_path):
    settings = settings_of(trackers=["wandb"])
    launch(settings, tmp_path / "r")
    records = list(wandb_records(tmp_path / "r"))
    (run,) = (r.run for r in records if r.HasField("run"))
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    environment = config.pop("environment")
    assert {n: v for n, v in config.items() if n != "_wandb"} == hyperparameters(settings)
    assert environment == read_run(tmp_path / "r").environment
    about = (run.display_name, run.run_id, run.project)
    assert about == ("r", identity(read_run(tmp_path / "r")), "wima")
    assert [r.exit.exit_code for r in records if r.HasField("exit")] == [0]

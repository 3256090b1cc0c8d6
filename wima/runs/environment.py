"""What results depend on besides the settings: versions, machine, command."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from wima.core.machine import processor
from wima.core.text import typed_command
from wima.core.version import __version__


def environment() -> dict[str, Any]:
    """What results depend on besides the settings."""
    import torch  # imported here: reading run folders does not need it

    packages = {name: version(name) for name in ("torch", "numpy", "safetensors")}
    return {
        "wima": __version__,
        "code": _commit(),
        "python": platform.python_version(),
        **packages,
        "platform": platform.platform(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # used by torch
        "cores": os.cpu_count(),
        "command": typed_command(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of the code, if it is a git checkout; a + marks uncommitted changes."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = [
        "git",
        "--no-optional-locks",
        "-C",
        str(root),
        "describe",
        "--always",
        "--abbrev=40",
        "--dirty=+",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

"""Simulate the app on this machine, with one process per core: python examples/flower/simulate.py

The run config is that of pyproject.toml, changed by key=value: ... simulate.py out=runs/again
"""

import sys
import tomllib
from pathlib import Path

from wima_app.client_app import app as client_app
from wima_app.server_app import app as server_app

from wima.flower import run_flower

if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))
    config = project["tool"]["flwr"]["app"]["config"]
    config |= dict(argument.split("=", 1) for argument in sys.argv[1:])
    # The nodes are processes of yours, so the settings may name your files.
    own = {"files": True}
    run_flower(server_app, client_app, nodes=2, run_config=config, node_config=own)

"""The ServerApp of every algorithm, and the same run on Flower's simulation engine."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ConfigRecordValues, Context
from flwr.serverapp import Grid, ServerApp

from wima.core.text import echo
from wima.flower.app.client import client_app
from wima.flower.app.federation import Federation
from wima.flower.app.options import Options, read_order
from wima.flower.app.result import as_text
from wima.runs.build import build_task
from wima.runs.folder import Run, check_free, read_run
from wima.runs.settings import Settings

server_app = ServerApp()
"""The ServerApp that runs all our algorithms.

Its run config has `settings`, a preset or a file; `overrides`, changes to these settings; `out`,
the run folder; and the fields of `Options`, spelt with dashes, as in `min-nodes`.

Examples:
    >>> from wima.flower import client_app, run_flower, server_app
    >>> config = {"settings": "digits", "overrides": "algorithm=scaffold rounds=2", "out": "first"}
    >>> context = run_flower(server_app, client_app, nodes=100, workers=1, run_config=config)
    Memory: ...
    Models in ...first/models: plain.safetensors, wima-auto.safetensors, wima50.safetensors
"""


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Start or resume the run that the run config describes."""
    settings, out, options = read_order(context.run_config)
    federation = Federation(settings, out, options)
    for line in as_text(federation.start(grid), federation.out.resolve()):
        echo(line)


def simulate_on_flower(settings: Settings, out: Path, options: Options) -> Run:
    """Run on Flower's simulation engine, one virtual node per client."""
    # The only Python entry point to Flower's engine for one machine; nothing else needs Ray.
    from flwr.simulation import run_simulation

    check_free(out)
    app, strategy = ServerApp(), Federation(settings, out, options)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid)

    nodes = build_task(settings).data.num_clients
    backend: dict[str, dict[str, ConfigRecordValues]] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0}
    }
    run_simulation(app, client_app, num_supernodes=nodes, backend_config=backend)
    return read_run(out)

"""The command line: one function per command, no logic."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from wima.cli import arguments, reports
from wima.cli.arguments import NewFolder, Overrides, SettingsCommand, Source
from wima.cli.average import advise, average
from wima.cli.data import app as data_app
from wima.cli.experiments import paper, sweep, tune
from wima.core.errors import RunError, UsageError
from wima.core.machine import open_streams
from wima.core.signals import Interrupted
from wima.core.text import echo
from wima.core.version import __version__

if TYPE_CHECKING:
    from wima.runs.settings import Settings

arguments.patch_typer()
app = typer.Typer(
    help="Federated learning on heterogeneous data, with window-based model averaging (WIMA).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
flower = typer.Typer(help="Run on Flower: see docs/flower.md.", no_args_is_help=True)
app.add_typer(flower, name="flower")
for command in (paper, reports.report, reports.compare, average, advise):
    app.command()(command)
app.command(cls=SettingsCommand)(sweep)
app.command(cls=SettingsCommand)(tune)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"wima {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of wima itself."""


@app.command()
def demo(seed: Annotated[int, Option(help="Seed of the run.")] = 0, out: NewFolder = None) -> None:
    """Compare the window average with FedAvg on real digits, in under a minute."""
    from wima.runs import folder, settings

    chosen = settings.load_settings("demo", [f"seed={seed}"])
    path = out or folder.free_path(Path("runs") / "demo")
    folder.check_free(path)
    print("FedAvg on 1,797 real digits: 100 clients with one digit each, 5 clients per round.")
    print("plain: the global model. wima50: the mean of the last 50 global models.")
    print("wima-auto: the mean of the last W; the clients' gradients choose W in every round.")
    _run_and_show(chosen, path)


@app.command(cls=SettingsCommand)
def run(source: Source, overrides: Overrides = None, out: NewFolder = None) -> None:
    """Run a preset or a settings file, for example: wima run digits lr=0.05 window=10,50"""
    from wima.runs import settings

    _run_and_show(settings.load_settings(source, overrides or []), out)


@app.command(cls=SettingsCommand)
def resume(
    path: Annotated[Path, Argument(metavar="RUN", help="A run folder.")],
    overrides: Overrides = None,
    trust: Annotated[
        bool, Option("--trust", help="Import code that another user's folder names.")
    ] = False,
) -> None:
    """Resume a run that was interrupted, killed or failed; the result is the same.

    Code that the settings name, such as my_file.py:Thing, is imported.
    """
    from wima.runs import checkpoint, launch, run

    changes = overrides or ()
    wanted = checkpoint.settings_to_resume(run.read_run(path), changes, trust)
    if not launch.works_for_rank_0(wanted):
        reports.show(launch.resume(path, changes=changes, trust=trust), path)


@app.command()
def runs(
    folder: Annotated[Path, Argument(help="A folder that contains run folders.")] = Path("runs"),
) -> None:
    """List runs with their state, progress and mean accuracy over the last rounds."""
    from rich.console import Console

    Console().print(reports.runs_table(folder))


@app.command()
def track(
    paths: Annotated[list[Path], Argument(metavar="RUN...", help="Run folders.")],
    to: Annotated[str, Option(help="Trackers, for example tensorboard,mlflow.")],
) -> None:
    """Export runs that have ended to TensorBoard, MLflow or Weights & Biases."""
    from wima.runs.track import export

    for line in export(paths, to.split(",")):
        echo(line)


def _kinds(incomplete: str) -> list[str]:
    from wima.runs.list import KINDS

    return list(KINDS)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        Argument(help="What to list, for example algorithms.", autocompletion=_kinds),
    ] = None,
) -> None:
    """List what is available: algorithms, averagers, data sets, models, ... with their settings."""
    from wima.runs.list import lines

    for line in lines(kind):
        print(line)


@flower.command("run", cls=SettingsCommand)
def flower_run(
    source: Source,
    overrides: Overrides = None,
    out: NewFolder = None,
    robust: Annotated[bool, Option(help="Ignore implausible updates.")] = True,
    round_seconds: Annotated[float, Option(help="Timeout for the replies of a round.")] = 600,
) -> None:
    """Run a preset or settings file as a Flower app on this machine, with one node per client."""
    from wima.runs import folder, settings

    chosen = settings.load_settings(source, overrides or [])
    from wima.flower.app import nodes, server  # raises an error if Flower is not installed

    path = out or folder.default_path(chosen)
    options = nodes.Options(robust=robust, round_seconds=round_seconds)
    reports.show(server.simulate(chosen, path, options), path)


def _run_and_show(settings: Settings, path: Path | None) -> None:
    from wima.runs import folder, launch

    if not launch.works_for_rank_0(settings):
        path = path or folder.default_path(settings)
        reports.show(launch.launch(settings, path), path)


def main() -> None:
    """Run the command line; the exit code is 2 for a user's mistake, 1 for a failed run."""

    def interrupt_once(number: int, frame: FrameType | None) -> None:
        """Handle the first Ctrl-C and ignore the rest, so that cleaning up is not interrupted."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    open_streams()
    os.environ["MPLBACKEND"] = "agg"  # we draw into files; a wrong one would fail after all rounds
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt_once)
    try:
        try:
            app(prog_name="wima")
        finally:
            sys.stdout.flush()
    except UsageError as error:
        message, code = f"Error: {error}", 2
    except RunError as error:
        message, code = f"Error: {error}", 1
    except Interrupted as error:
        message, code = str(error), error.code
    except KeyboardInterrupt:
        message, code = "Interrupted.", 130
    except OSError as error:  # of standard output, or of the whole system
        message, code = f"Error: {error.strerror or error}; what is printed may be incomplete.", 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # until Python has ended
    with contextlib.suppress(OSError):
        echo(message, sys.stderr)
    sys.exit(code)

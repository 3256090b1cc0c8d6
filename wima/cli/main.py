"""The command line: one function per command, no logic."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from wima.cli.arguments import NewFolder, Overrides, SettingsCommand, Source, patch_typer
from wima.cli.average import advise, average
from wima.cli.compare import compare
from wima.cli.data import app as data_app
from wima.cli.experiments import paper, sweep, tune
from wima.cli.flower import app as flower_app
from wima.core.errors import RunError, UsageError
from wima.core.text import echo
from wima.core.version import __version__

if TYPE_CHECKING:
    from wima.runs.settings import Settings

patch_typer()
app = typer.Typer(
    help="Federated learning on heterogeneous data, with window-based model averaging (WIMA).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")
for command in (paper, compare, average, advise):
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
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of wima itself."""


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0, out: NewFolder = None
) -> None:
    """Compare the window average with FedAvg on real digits, in under a minute."""
    from wima.runs.folder import check_free, free_path
    from wima.runs.settings import load_settings

    settings = load_settings("demo", [f"seed={seed}"])
    path = out or free_path(Path("runs") / "demo")
    check_free(path)
    print("FedAvg on 1,797 real digits: 100 clients with one digit each, 5 clients per round.")
    print("plain: the global model. wima50: the mean of the last 50 global models.")
    print("wima-auto: the mean of the last W; the clients' gradients choose W in every round.")
    _run_and_show(settings, path)


@app.command(cls=SettingsCommand)
def run(source: Source, overrides: Overrides = None, out: NewFolder = None) -> None:
    """Run a preset or a settings file, for example: wima run digits lr=0.05 window=10,50"""
    from wima.runs.folder import default_path
    from wima.runs.settings import load_settings

    settings = load_settings(source, overrides or [])
    _run_and_show(settings, out or default_path(settings))


@app.command(cls=SettingsCommand)
def resume(
    path: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    overrides: Overrides = None,
) -> None:
    """Resume a run that was interrupted, killed or failed; the result is the same."""
    from wima.cli.tables import show
    from wima.runs import launch
    from wima.runs.checkpoint import settings_to_resume
    from wima.runs.run import read_run

    changes = overrides or ()
    if not launch.works_for_rank_0(settings_to_resume(read_run(path), changes)):
        show(launch.resume(path, changes=changes), path)


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="A folder that contains run folders.")] = Path(
        "runs"
    ),
) -> None:
    """List runs with their state, progress and mean accuracy over the last rounds."""
    from rich.console import Console

    from wima.cli.tables import runs_table

    Console().print(runs_table(folder))


@app.command()
def track(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    to: Annotated[str, typer.Option(help="Trackers, for example tensorboard,mlflow.")],
) -> None:
    """Export runs that have ended to TensorBoard, MLflow or Weights & Biases."""
    from wima.runs.track import export

    for line in export(paths, to.split(",")):
        echo(line)


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain them.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    metric: Annotated[str, typer.Option(help="The metric to report.")] = "accuracy",
    last: Annotated[int | None, typer.Option(help="Number of last rounds to average.")] = None,
    target: Annotated[
        float | None, typer.Option(help="Count the rounds until this value, for example 0.8.")
    ] = None,
    notes: Annotated[
        Path | None,
        typer.Option(help="Notes in Markdown; sections titled like a data set go with it."),
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace an earlier report.")] = False,
) -> None:
    """Write tables, figures and a web page of runs, next to the paper's numbers if it has any."""
    from wima.core.measure import Measure
    from wima.report.write import write_report

    done = write_report(paths, out, Measure(metric, last, target), force, notes)
    for item in done.omitted:
        echo(f"Left out {item.path}: {item.reason}", sys.stderr)
    echo(f"{done.runs} runs, {len(done.tables)} tables. Open {out / 'index.html'}")


def _kinds(incomplete: str) -> list[str]:
    from wima.runs.list import KINDS

    return list(KINDS)


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="What to list, for example algorithms.", autocompletion=_kinds),
    ] = None,
) -> None:
    """List what is available: algorithms, averagers, data sets, models, ... with their settings."""
    from wima.runs.list import lines

    for line in lines(kind):
        print(line)


def _run_and_show(settings: Settings, path: Path) -> None:
    from wima.cli.tables import show
    from wima.runs.launch import launch, works_for_rank_0

    if not works_for_rank_0(settings):
        show(launch(settings, path), path)


def main() -> None:
    """Run the command line; the exit code is 2 for a user's mistake, 1 for a failed run."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt_once)
    try:
        _main()
    except KeyboardInterrupt:
        _end("Interrupted.", 130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # until Python has ended


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Handle the first Ctrl-C and ignore the rest, so that cleaning up is not interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _main() -> None:
    try:
        app(prog_name="wima")
    except UsageError as error:
        _end(f"Error: {error}", 2)
    except RunError as error:
        _end(f"Error: {error}", 1)
    except Exception as error:
        from wima.core.signals import Interrupted

        if not isinstance(error, Interrupted):
            raise
        _end(str(error), error.code)


def _end(message: str, code: int) -> None:
    echo(message, sys.stderr)
    sys.exit(code)

"""Commands for saved models: `wima average` and `wima advise`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from wima.cli.arguments import ForcePicture
from wima.core.errors import EQUAL, check_equal_weights
from wima.core.text import echo

Files = Annotated[
    list[str], typer.Argument(metavar="CKPT", help="Files, folders or quoted patterns.")
]
Out = Annotated[Path, typer.Option(help="Output file: .safetensors, .npz or .pt.")]
WindowSize = Annotated[int, typer.Option(help="Number of files to average.")]
Shape = Annotated[str, typer.Option(help="Removed.", hidden=True)]
Ema = Annotated[float | None, typer.Option(help="Use an EMA with this decay instead of a window.")]
Last = Annotated[int | None, typer.Option(help="Use only this many of the newest files.")]
Every = Annotated[int, typer.Option(help="Use every k-th file, counting back from the newest.")]
Order = Annotated[
    str, typer.Option(help="Sort by number (in names) or time (of modification); given: no sort.")
]
Part = Annotated[
    list[str] | None,
    typer.Option(help="Average only tensors with matching names, such as 'head.*'."),
]
Key = Annotated[
    str | None, typer.Option(help="Key of the weights in PyTorch files, for example model.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Evaluate = Annotated[
    str,
    typer.Option(
        "--eval",
        help="A .py file with evaluate(path), or a command that prints the metric as its last "
        "line; {} stands for the checkpoint file.",
    ),
]
Minimize = Annotated[bool, typer.Option("--minimize", help="Lower values are better.")]
Metric = Annotated[str | None, typer.Option(help="Name of the metric, if there are several.")]
Windows = Annotated[
    str | None, typer.Option(help="Window sizes.  [default: 1,2,5,10,20,50,... and all files]")
]
Decays = Annotated[
    str | None, typer.Option(help="EMA decays; '' for none.  [default: 0.5,0.8,0.9,0.95,...]")
]
Ends = Annotated[int, typer.Option(help="End points: evaluate as if training had ended earlier.")]
Apart = Annotated[int, typer.Option(help="Files between end points.")]
Picture = Annotated[Path, typer.Option(help="PNG of the metric against the window.")]


def average(
    files: Files,
    out: Out,
    window: WindowSize = 100,
    shape: Shape = EQUAL,
    ema: Ema = None,
    last: Last = None,
    every: Every = 1,
    order: Order = "number",
    part: Part = None,
    key: Key = None,
    force: Force = False,
) -> None:
    """Average the last checkpoints: wima average 'run/*.pt' --out mean.pt"""
    from wima.model_files.mean import Decay, Window, average_files
    from wima.model_files.read import select

    check_equal_weights("--shape", shape)
    rule = Window(window) if ema is None else Decay(ema)
    chosen = select(files, order, last, every)
    options: dict[str, Any] = {"part": part or (), "key": key, "force": force}
    with _bar("averaging") as progress:
        done = average_files(chosen, out, rule, progress=progress, **options)
    used = done.files
    if isinstance(rule, Window) and window > len(used):
        print(f"The window is {window}, but there are only {len(used)} checkpoints: all were used.")
    echo(f"{out}: {rule.name}, {len(used)} checkpoints, {used[0]} to {used[-1]},")
    print(f"{done.numbers:,} numbers in {done.tensors:,} tensors.")


def advise(
    files: Files,
    evaluate: Evaluate,
    minimize: Minimize = False,
    metric: Metric = None,
    windows: Windows = None,
    decays: Decays = None,
    ends: Ends = 5,
    apart: Apart = 1,
    last: Last = None,
    every: Every = 1,
    order: Order = "number",
    key: Key = None,
    out: Picture = Path("advise.png"),
    force: ForcePicture = False,
) -> None:
    """Find the best window or EMA: wima advise 'run/*.pt' --eval evaluate.py"""
    from rich.console import Console

    from wima.cli.advice import advice_table, draw_advice
    from wima.model_files import advise as advice
    from wima.model_files.advise import Evaluator
    from wima.model_files.read import select
    from wima.storage.files import check_picture

    check_picture(out, force)
    evaluator, chosen = Evaluator(evaluate, metric, echo), select(files, order, last, every)
    rules = advice.candidates(len(chosen), windows, decays)
    points = advice.end_points(len(chosen), ends, apart)
    print(f"{len(chosen)} checkpoints, {len(rules)} candidates, {len(points)} end points.")
    with _bar("evaluating") as progress:
        rows = advice.advise(chosen, evaluator, rules, points, minimize, key, progress)
    name = evaluator.metric or "metric"
    Console().print(advice_table(rows, name))
    for line in advice.verdict(rows):
        echo(line)
    draw_advice(rows, name, out, force)
    echo(f"Picture: {out}")


@contextmanager
def _bar(what: str) -> Iterator[Callable[[float], None]]:
    """A progress bar; yields the function that sets the completed share."""
    from rich.progress import TaskProgressColumn

    from wima.core.progress import progress_bar

    with progress_bar(what, TaskProgressColumn()) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)

"""Commands for saved models: `wima average` and `wima advise`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from wima.cli.arguments import ForcePicture
from wima.core.errors import EQUAL, check_equal_weights
from wima.core.text import cell, echo, printable

if TYPE_CHECKING:
    from rich.table import Table

    from wima.model_files.advise import Row

Files = Annotated[list[str], Argument(metavar="CKPT", help="Files, folders or quoted patterns.")]
Last = Annotated[int | None, Option(help="Use only this many of the newest files.")]
Every = Annotated[int, Option(help="Use every k-th file, counting back from the newest.")]
Order = Annotated[
    str, Option(help="Sort by number (in names) or time (of modification); given: no sort.")
]
Key = Annotated[str | None, Option(help="Key of the weights in PyTorch files, for example model.")]


def average(
    files: Files,
    out: Annotated[Path, Option(help="Output file: .safetensors, .npz or .pt.")],
    window: Annotated[int, Option(help="Number of files to average.")] = 100,
    shape: Annotated[str, Option(help="Removed.", hidden=True)] = EQUAL,
    ema: Annotated[
        float | None, Option(help="Use an EMA with this decay instead of a window.")
    ] = None,
    last: Last = None,
    every: Every = 1,
    order: Order = "number",
    part: Annotated[
        list[str] | None,
        Option(help="Average only tensors with matching names, such as 'head.*'."),
    ] = None,
    key: Key = None,
    force: Annotated[bool, Option("--force", help="Replace an existing output.")] = False,
) -> None:
    """Average the last checkpoints: wima average 'run/*.pt' --out mean.pt"""
    from wima.model_files import mean, read

    check_equal_weights("--shape", shape)
    rule = mean.Window(window) if ema is None else mean.Decay(ema)
    chosen = read.select(files, order, last, every)
    with _bar("averaging") as bar:
        done = mean.average_files(
            chosen, out, rule, part=part or (), key=key, force=force, progress=bar
        )
    used = done.files
    if ema is None and window > len(used):
        print(f"The window is {window}, but there are only {len(used)} checkpoints: all were used.")
    echo(f"{out}: {rule.name}, {len(used)} checkpoints, {used[0]} to {used[-1]},")
    print(f"{done.numbers:,} numbers in {done.tensors:,} tensors.")


def advise(
    files: Files,
    evaluate: Annotated[
        str,
        Option(
            "--eval",
            help="A .py file with evaluate(path), or a command that prints the metric as its last "
            "line; {} stands for the checkpoint file.",
        ),
    ],
    minimize: Annotated[bool, Option("--minimize", help="Lower values are better.")] = False,
    metric: Annotated[str | None, Option(help="Name of the metric, if there are several.")] = None,
    windows: Annotated[
        str | None, Option(help="Window sizes.  [default: 1,2,5,10,20,50,... and all files]")
    ] = None,
    decays: Annotated[
        str | None, Option(help="EMA decays; '' for none.  [default: 0.5,0.8,0.9,0.95,...]")
    ] = None,
    ends: Annotated[int, Option(help="End points: evaluate as if training had ended earlier.")] = 5,
    apart: Annotated[int, Option(help="Files between end points.")] = 1,
    last: Last = None,
    every: Every = 1,
    order: Order = "number",
    key: Key = None,
    out: Annotated[Path, Option(help="PNG of the metric against the window.")] = Path("advise.png"),
    force: ForcePicture = False,
) -> None:
    """Find the best window or EMA: wima advise 'run/*.pt' --eval evaluate.py"""
    from rich.console import Console

    from wima.model_files import advise as advice, read
    from wima.storage.files import check_picture

    check_picture(out, force)
    evaluator = advice.Evaluator(evaluate, metric, echo)
    chosen = read.select(files, order, last, every)
    rules = advice.candidates(len(chosen), windows, decays)
    points = advice.end_points(len(chosen), ends, apart)
    print(f"{len(chosen)} checkpoints, {len(rules)} candidates, {len(points)} end points.")
    with _bar("evaluating") as progress:
        rows = advice.advise(chosen, evaluator, rules, points, minimize, key, progress)
    name = evaluator.metric or "metric"
    Console().print(_advice_table(rows, name))
    for line in advice.verdict(rows):
        echo(line)
    _draw_advice(rows, name, out, force)
    echo(f"Picture: {out}")


@contextmanager
def _bar(what: str) -> Iterator[Callable[[float], None]]:
    """A progress bar; yields the function that sets the completed share."""
    from rich.progress import TaskProgressColumn

    from wima.core.progress import progress_bar

    with progress_bar(what, TaskProgressColumn()) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def _advice_table(rows: Sequence[Row], metric: str) -> Table:
    """A row per candidate: mean and deviation over end points, gain over plain, its interval."""
    from rich.table import Table

    ends = len(rows[0].values)
    table = Table(title=cell(f"{metric}, mean over {ends} end points"))
    for heading in ("candidate", metric, "deviation", "gain", "±"):
        table.add_column(cell(heading), justify="left" if heading == "candidate" else "right")
    for row in rows:
        plain = row is rows[0]
        gain = "" if plain else f"{row.gain:+.5f}"
        margin = "" if plain or isnan(row.margin) else f"{row.margin:.5f}"
        table.add_row(row.rule.name, f"{row.mean:.5f}", f"{row.deviation:.5f}", gain, margin)
    return table


def _draw_advice(rows: Sequence[Row], metric: str, path: Path, force: bool) -> None:
    """Plot the metric against the window as a PNG; error bars: deviation over end points."""
    from matplotlib.figure import Figure

    from wima.model_files.mean import Decay
    from wima.storage.files import save_picture

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    plain = rows[0]
    axes.axhline(plain.mean, color="black", linewidth=0.9, label="plain")
    low, high = plain.mean - plain.deviation, plain.mean + plain.deviation
    axes.axhspan(low, high, color="black", alpha=0.08)
    windows = [row for row in rows if not isinstance(row.rule, Decay)]
    decays = [row for row in rows if isinstance(row.rule, Decay)]
    label = "EMA, at the window of the same mean age"
    for some, style, name in ((windows, "o-", "window"), (decays, "s--", label)):
        if some := sorted(some, key=lambda row: row.rule.span):
            spans, means = [row.rule.span for row in some], [row.mean for row in some]
            axes.errorbar(spans, means, [row.deviation for row in some], fmt=style, label=name)
    sizes = [int(row.rule.span) for row in windows]
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("window: models in the mean")
    axes.set_ylabel(printable(metric), parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend()
    save_picture(figure, path, force)

"""How far rules that choose a window are behind the best window in hindsight.

Prints the table of docs/choosing-w.md; with a folder, also draws the windows that a rule chose
beside the good ones, a picture per data set.

    wima paper auto --scale cpu --only digits-0 --seeds 0-2
    python examples/results/choosing_w.py runs/cpu/auto.sheet.json [FOLDER]

Each number is a mean over the last third of the rounds ("before": the second third), then over
seeds.  Best: the best of plain and the fixed windows, in hindsight, for each run and third.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import wima
from wima.experiments.sheet import read_sheet

LAST, MIDDLE = (2 / 3, 1.0), (1 / 3, 2 / 3)  # parts of the rounds
SMOOTH = 5  # evaluations that are averaged to find a best window: single ones are noisy
NEAR = 0.001  # windows this close to the best are shown as equally good


def main(path, folder=None):
    sheet = read_sheet(Path(path))
    runs = list(finished(sheet, Path(path).parent))
    for line in table(sheet, runs):
        print("| " + " | ".join(line) + " |")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
    for column in sheet.columns if folder else []:
        name = re.sub(r"[^a-z0-9]+", "-", column.lower()).strip("-")
        draw(column, runs).savefig(Path(folder) / f"{name}.png", dpi=120)


def finished(sheet, folder):
    """Row, column, models and result of each finished run."""
    rows, columns = sheet.rows.index, sheet.columns.index
    for cell in sorted(sheet.cells, key=lambda c: (rows(c.row), columns(c.column), c.seed)):
        status = folder / cell.run / "status.json"
        if status.exists() and json.loads(status.read_text(encoding="utf-8"))["state"] == "done":
            yield cell.row, cell.column, cell.models, wima.read_run(folder / cell.run)


def fixed_windows(models):
    """The headings to choose from in hindsight, with their windows; plain counts as 1."""
    found = {h: re.fullmatch(r"wima(\d+)", model) for h, model in models.items()}
    return {"plain": 1} | {h: int(m[1]) for h, m in found.items() if m and h.startswith("W = ")}


def regret(models, run, part):
    """The levels of plain and the best window, that window, and how far each rule is behind."""
    low, high = (share * run.records[-1].t for share in part)
    means, windows = {}, fixed_windows(models)
    for heading, model in models.items():
        rounds, values = map(np.array, run.curve(model, "accuracy"))
        means[heading] = values[(rounds > low) & (rounds <= high)].mean()
    best = max(windows, key=means.__getitem__)
    behind = {h: mean - means[best] for h, mean in means.items() if h not in windows}
    return {"plain": means["plain"], "best": means[best], "window": windows[best], **behind}


def table(sheet, runs):
    """A line per method and data set, then the means and the worst run."""
    first, *others = [h for h in sheet.headings if h != "plain" and not h.startswith("W = ")]
    found = [(r, c, regret(m, run, LAST), regret(m, run, MIDDLE)) for r, c, m, run in runs]

    def behind(some, of=np.mean):
        late, middle = [f[2] for f in some], [f[3] for f in some]
        gains = [one[first] + one["best"] - one["plain"] for one in late]
        columns = [gains, [one[first] for one in late], [one[first] for one in middle]]
        columns += [[one[rule] for one in late if rule in one] for rule in others]
        return [text(of(column), "+") if column else "" for column in columns]

    header = ["", "", "plain", "best window", "best"]
    header += [f"{first} − {of}" for of in ("plain", "best", "best before")]
    yield [*header, *(f"{rule} − best" for rule in others)]
    yield ["---"] * 2 + ["---:"] * (len(header) - 2 + len(others))
    for row, column in dict.fromkeys(f[:2] for f in found):
        some = [f for f in found if f[:2] == (row, column)]
        plain, best = (text(np.mean([f[2][name] for f in some])) for name in ("plain", "best"))
        windows = ", ".join(dict.fromkeys(str(f[2]["window"]) for f in some))
        yield [row, column, plain, windows, best, *behind(some)]
    for column in sheet.columns if len(sheet.columns) > 1 else []:
        yield ["mean", column, "", "", "", *behind([f for f in found if f[1] == column])]
    yield ["mean of all runs", "", "", "", "", *behind(found)]
    yield ["worst of all runs", "", "", "", "", *behind(found, min)]


def text(value, sign=""):
    return f"{100 * value:{sign}.2f}".replace("-", "−")


def draw(column, runs):
    """A panel per method: the rule's windows as a line per seed, and good windows as a band."""
    methods = {}
    for row, where, models, run in runs:
        if where == column:
            methods.setdefault(row, []).append((models, run))
    down = max(1, -(-len(methods) // 4))
    figure = Figure(figsize=(12, 2.2 * down + 0.6), layout="constrained")
    panels = figure.subplots(down, 4, sharex=True, sharey=True, squeeze=False).ravel()
    for panel in panels[len(methods) :]:
        panel.set_axis_off()
    for panel, (row, seeds) in zip(panels, methods.items(), strict=False):
        rounds, low, high = good_windows(seeds)
        label = "fixed windows within 0.1 of the best"
        panel.fill_between(rounds, low / 1.1, high * 1.1, alpha=0.25, lw=0, label=label)
        for number, (_, run) in enumerate(seeds):
            label = None if number else "chosen"
            panel.plot(*next(iter(run.windows.values())), color="#d55e00", lw=0.9, label=label)
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.grid(alpha=0.3)
        panel.set_title(row, fontsize="medium")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, fontsize="small")
    figure.supxlabel("round", fontsize="medium")
    figure.supylabel("models in the window", fontsize="medium")
    figure.suptitle(column, x=0.01, ha="left")
    return figure


def good_windows(seeds):
    """Rounds, with the shortest and longest fixed window that is about as good as the best."""
    windows = fixed_windows(seeds[0][0])
    sizes = np.array([*windows.values()])
    curves = [[run.curve(models[h], "accuracy") for h in windows] for models, run in seeds]
    rounds = np.array(curves[0][0][0])
    values = np.mean([[v for _, v in own] for own in curves], axis=0)
    ends = range(SMOOTH, len(rounds) + 1)
    smooth = np.stack([values[:, end - SMOOTH : end].mean(axis=1) for end in ends])
    good = smooth >= smooth.max(axis=1, keepdims=True) - NEAR
    low, high = (np.array([of(sizes[line]) for line in good]) for of in (min, max))
    return rounds[SMOOTH - 1 :], low, high


if __name__ == "__main__":
    main(*sys.argv[1:])

"""`wima runs`: every run below a folder, by the mean over its last rounds, at any length."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, pstdev

import pytest
from rich.console import Console

from wima.cli.reports import runs_table
from wima.core.errors import UsageError
from wima.core.statistics import LAST
from wima.runs.folder import run_folders
from wima.runs.run import ending, read_run, summarize
from wima.runs.settings import load_settings
from wima.storage.files import BLOCK, complete_lines, last_lines

MODELS = ("plain", "wima10", "ema0.9")


def accuracy(t: int, model: str) -> float:
    return (t * 7 % 89 + 3 * MODELS.index(model)) / 101


def line(t: int, every: int) -> str:
    metrics = {name: {"loss": 1.0, "accuracy": accuracy(t, name)} for name in MODELS}
    record = {"t": t, "cohort": [t], "lr": 0.1, "metrics": metrics if t % every == 0 else {}}
    return json.dumps(record) + "\n"


def made(path: Path, done: int, state: str = "done", every: int = 1) -> Path:
    """A run folder with so many made-up records."""
    path.mkdir(parents=True)
    (path / "settings.toml").write_text(load_settings("digits", []).to_toml())
    (path / "environment.json").write_text("{}")
    (path / "status.json").write_text(json.dumps({"state": state, "done": done}))
    (path / "records.jsonl").write_text("".join(line(t, every) for t in range(1, done + 1)))
    return path


def shown(folder: Path) -> str:
    console = Console(width=200)
    with console.capture() as got:
        console.print(runs_table(folder))
    return got.get()


@pytest.mark.parametrize(("done", "every"), [(1, 1), (3, 1), (40, 1), (400, 1), (450, 7), (999, 1)])
def test_a_run_is_summed_up_by_the_evaluations_in_its_last_rounds(tmp_path, done, every):
    run = read_run(made(tmp_path / "run", done, every=every))
    last = max(1, min(100, done // 4))
    rounds = [t for t in range(done - last + 1, done + 1) if t % every == 0]
    for row in summarize(run):
        late = [accuracy(t, row.model) for t in rounds]
        assert (row.evaluations, row.last) == (len(late), last)
        assert (row.mean, row.deviation) == pytest.approx((mean(late), pstdev(late)))
    assert [row.model for row in summarize(run)] == list(MODELS)


def test_only_the_end_of_a_long_file_is_read(tmp_path, monkeypatch):
    short, long = (read_run(made(tmp_path / str(n), n)) for n in (2_000, 20_000))
    read = []

    class Counting:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            self.file.close()

        def seek(self, *where):
            return self.file.seek(*where)

        def read(self, size):
            read.append(size)
            return self.file.read(size)

    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *how: Counting(opened(path, *how)))
    for run in (short, long):
        read.clear()
        assert ending(run).t == run.status["done"]
        needed = sum(len(line(run.status["done"], 1)) for _ in range(LAST + 1))
        assert sum(read) <= needed + 2 * BLOCK < run.path.joinpath("records.jsonl").stat().st_size


def test_the_table_shows_the_means_of_plain_and_of_the_best_average(tmp_path):
    folder = made(tmp_path / "runs" / "mine", 400)
    means = {name: 100 * mean(accuracy(t, name) for t in range(301, 401)) for name in MODELS}
    best = max(MODELS[1:], key=means.__getitem__)
    text = shown(tmp_path / "runs")
    assert "mean over the last 100 rounds" in " ".join(text.split())
    assert f"{means['plain']:.2f}" in text and f"{means[best]:.2f} {best}" in text
    assert "mine" in shown(folder)


def test_runs_in_folders_below_are_listed_by_their_path(tmp_path):
    names = ["a", "sweep/b", "sweep/deep/c"]
    for name in names:
        made(tmp_path / name, 4)
    made(tmp_path / "a" / "models", 4)  # what is inside a run is not looked at
    made(tmp_path / ".hidden", 4)
    (tmp_path / "sweep" / "back").symlink_to(tmp_path)
    found = [str(path.relative_to(tmp_path)) for path in run_folders(tmp_path)]
    assert found == names
    assert all(f" {name} " in shown(tmp_path) for name in names)


def test_a_run_under_way_is_as_far_as_its_last_complete_record(tmp_path):
    path = made(tmp_path / "run", 40, state="running")
    (path / "status.json").write_text(json.dumps({"state": "running", "done": 0}))
    with (path / "records.jsonl").open("a") as file:
        file.write(line(41, 1)[:-9])
    assert "interrupted" in shown(tmp_path) and "40/400" in shown(tmp_path)
    (path / "records.jsonl").write_text("")
    assert "0/400" in shown(tmp_path)


def test_a_run_with_other_metrics_is_listed_without_numbers(tmp_path):
    path = made(tmp_path / "run", 8)
    text = (path / "records.jsonl").read_text().replace("accuracy", "perplexity")
    (path / "records.jsonl").write_text(text)
    assert "8/400" in shown(tmp_path) and "unreadable" not in shown(tmp_path)


def test_damage_near_the_end_is_named(tmp_path):
    path = made(tmp_path / "run", 8)
    with (path / "records.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(UsageError, match=r"damaged near its end.*wima resume"):
        ending(read_run(path))
    assert "unreadable" in shown(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"cut",
        b"one\n",
        b"one\ntwo\r\ncut",
        b"\xef\xbb\xbfone\r\n\r\n\ntwo\n",
        b"x" * (BLOCK - 1) + b"\n" + b"y" * BLOCK + b"\nz\n",
        b"long" * BLOCK + b"\n" + b"cut" * BLOCK,
        b"ab\n" * BLOCK,
    ],
)
def test_lines_from_the_end_are_those_from_the_start(tmp_path, content):
    file = tmp_path / "lines"
    file.write_bytes(content)
    assert list(last_lines(file)) == list(complete_lines(file))[::-1]

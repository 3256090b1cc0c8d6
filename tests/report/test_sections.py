"""Clients, fine-tuning and calibration below a table: as a naive computation from the records."""

from __future__ import annotations

import csv
import re
import shutil
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t as student

from tests.helpers.extras import add_extras, records_of, rewrite
from tests.helpers.reports import ROUNDS, curves, data_of, place
from tests.helpers.run_folders import write_run
from wima.core.measure import MINUS, Measure
from wima.report.text import DATA, csv_text
from wima.report.write import write_report
from wima.runs.launch import launch
from wima.runs.settings import make_settings

METHODS = {"fedavg": (0, 1, 2), "scaffold": (3,)}  # of these runs
MODELS = ("plain", "wima10")
LAST = ROUNDS // 4


def write_runs(folder: Path) -> None:
    for method, numbers in METHODS.items():
        for seed, number in enumerate(numbers):
            settings = {"rounds": ROUNDS, "seed": seed, "algorithm": method}
            run = write_run(folder / f"{method}-{seed}", settings, curves(number))
            add_extras(run, number, ROUNDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sections") / "runs"
    write_runs(folder)
    return folder


@pytest.fixture(scope="module")
def made(runs) -> Path:
    write_report([runs], runs.parent / "report")
    return runs.parent / "report"


def table(report: Path, name: str) -> list[dict[str, str]]:
    """A section's lines; the label columns, which have no heading, as `0`, `1`, ..."""
    with (report / "tables" / f"runs-{name}.csv").open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    names = [text or str(place) for place, text in enumerate(header)]
    return [dict(zip(names, line, strict=True)) for line in lines]


def line_of(report: Path, name: str, *labels: str) -> dict[str, str]:
    wanted = {str(place): label for place, label in enumerate(labels)}
    [found] = [line for line in table(report, name) if wanted.items() <= line.items()]
    return found


def last_records(runs: Path, method: str) -> list[dict]:
    return [records_of(runs / f"{method}-{seed}")[-1] for seed in range(len(METHODS[method]))]


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", MINUS)


def interval(differences: list[float], digits: int) -> str:
    """Mean and Student's interval, without the mark of Holm's correction."""
    mean, n = np.mean(differences), len(differences)
    if n == 1:
        return signed(mean, digits)
    half = student.ppf(0.975, n - 1) * np.std(differences, ddof=1) / sqrt(n)
    ends = (signed(mean + side * half, digits) for side in (-1, 1))
    return f"{signed(mean, digits)} [{', '.join(ends)}]"


@pytest.mark.parametrize("method", METHODS)
def test_clients_are_those_of_the_last_record_that_has_them(made, runs, method):
    found = [record["clients"] for record in last_records(runs, method)]
    for model in MODELS:
        line = line_of(made, "clients", f"{method} on digits", model)
        for name, key in (("mean", "mean"), ("deviation", "deviation"), ("worst 10 %", "worst")):
            assert line[name] == f"{100 * np.mean([own[model][key] for own in found]):.2f}"
        for level in (25, 50, 75):
            quantiles = [own[model]["quantiles"][level // 5] for own in found]
            assert line[f"{level} %"] == f"{100 * np.mean(quantiles):.2f}"
    for key in ("gained", "lost"):
        mean = np.mean([own["wima10"][key] for own in found])
        assert float(line[key]) == pytest.approx(mean, abs=0.051)
    for name, key in (("gain in mean", "mean"), ("gain in worst 10 %", "worst")):
        differences = [100 * (own["wima10"][key] - own["plain"][key]) for own in found]
        assert line[name].rstrip("†") == interval(differences, 2)
    note = "over 40 clients, in the last round in which clients were evaluated (60)"
    assert note in (made / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("stage", ["before", "after"])
def test_fine_tuning_has_a_line_before_and_one_after(made, runs, stage):
    found = [record["finetuned"] for record in last_records(runs, "fedavg")]
    for model in MODELS:
        line = line_of(made, "finetuned", "fedavg on digits", model, stage)
        for name, key in (("mean", "mean"), ("worst 10 %", "worst")):
            assert line[name] == f"{100 * np.mean([own[model][stage][key] for own in found]):.2f}"
    for key in ("mean", "worst"):
        pairs = [(own["wima10"][stage][key], own["plain"][stage][key]) for own in found]
        shown = line["gain in mean" if key == "mean" else "gain in worst 10 %"]
        assert shown.rstrip("†") == interval([100 * (a - b) for a, b in pairs], 2)
    gained = np.mean([own["wima10"][stage]["gained"] for own in found])
    assert float(line["gained"]) == pytest.approx(gained, abs=0.051)


@pytest.mark.parametrize(("name", "key"), [("ECE", "ece"), ("NLL", "loss")])
def test_calibration_is_the_mean_over_the_last_rounds_then_over_seeds(made, runs, name, key):
    levels = {
        model: [
            np.mean([r["metrics"][model][key] for r in records_of(runs / f"fedavg-{s}")[-LAST:]])
            for s in METHODS["fedavg"]
        ]
        for model in MODELS
    }
    for model in MODELS:
        line = line_of(made, "calibration", "fedavg on digits", model)
        assert line[name] == f"{np.mean(levels[model]):.4f}"
    assert Measure(key).sign == -1  # lower is better, also with --metric
    differences = list(np.subtract(levels["wima10"], levels["plain"]))
    assert line[f"change in {name}"].rstrip("†") == interval(differences, 4)


def test_the_page_has_the_distribution_of_clients_and_the_bins_of_confidence(made, runs):
    sections = data_of(made)["tables"][0]["sections"]
    assert [section["title"] for section in sections] == ["Clients", "Fine-tuning", "Calibration"]
    last = last_records(runs, "fedavg")
    title, lines = sections[0]["picture"][3][0]
    assert title == "fedavg on digits" and [*lines] == [*MODELS]
    quantiles = np.mean([record["clients"]["wima10"]["quantiles"] for record in last], axis=0)
    expected = np.stack([100 * quantiles, np.arange(0, 101, 5)], axis=1)
    assert np.array(lines["wima10"]) == pytest.approx(expected, abs=0.0051)
    _, lines = sections[2]["picture"][3][0]
    pooled = []
    for own in zip(*(record["calibration"]["plain"] for record in last), strict=True):
        count = sum(n for n, _, _ in own)
        if count:  # the others are empty
            pooled.append([sum(100 * b[0] * b[i] for b in own if b[0]) / count for i in (1, 2)])
    assert 0 < len(pooled) < 15
    assert np.array(lines["plain"]) == pytest.approx(np.array(pooled), abs=0.0051)


def test_each_section_is_in_markdown_latex_csv_and_figures(made):
    files = data_of(made)["files"]["runs"]
    for name in ("clients", "finetuned", "calibration"):
        assert {f"tables/runs-{name}.tex", f"tables/runs-{name}.csv"} <= {*files}
        text = (made / "tables" / f"runs-{name}.tex").read_text(encoding="utf-8")
        assert text.isascii() and "FedAvg on Digits" in text and text.count("tabular}") == 2
        assert rf"\label{{tab:runs-{name}}}" in text
    pictures = {f"figures/runs-{n}.{e}" for n in ("clients", "calibration") for e in ("png", "svg")}
    assert pictures <= {*files} and all((made / name).is_file() for name in files)
    page = (made / "report.md").read_text(encoding="utf-8")
    assert all(f"**{title}**" in page for title in ("Clients", "Fine-tuning", "Calibration"))


def test_runs_without_these_records_have_the_report_that_they_had(made, tmp_path, runs):
    """Also: what stands before the sections is the same with and without them."""
    shutil.copytree(runs, tmp_path / "runs")
    for run in (tmp_path / "runs").iterdir():
        rewrite(run, forget)
    write_report([tmp_path / "runs"], tmp_path / "report")
    bare = tmp_path / "report"
    assert {path.name for path in (bare / "tables").iterdir()} == {f"runs.{e}" for e in ENDINGS}
    assert {path.name for path in (bare / "figures").iterdir()} == {"runs.png", "runs.svg"}
    for ending in ("tex", "csv"):
        texts = [(out / "tables" / f"runs.{ending}").read_bytes() for out in (bare, made)]
        assert texts[0] == texts[1]
    short, long = ((out / "tables" / "runs.md").read_text("utf-8") for out in (bare, made))
    assert long.startswith(short) and long.removeprefix(short).startswith("\n**Clients**")
    told, more = (data_of(out)["tables"][0] for out in (bare, made))
    assert more.pop("sections") and told == more
    assert (bare / "data.csv").read_text("utf-8").splitlines()[0] == csv_text(DATA, []).strip()


ENDINGS = ("md", "tex", "csv")


def forget(record: dict) -> None:
    for key in ("bytes", "clients", "calibration", "finetuned"):
        record.pop(key, None)
    for metrics in record["metrics"].values():
        metrics.pop("ece", None)


@pytest.mark.usefixtures("no_figures")
def test_a_place_without_a_number_says_why_and_seeds_are_counted_where_they_differ(tmp_path):
    states = [("fedavg", 0, "done", ROUNDS), ("fedavg", 1, "done", ROUNDS)]
    states += [("fedprox", 0, "diverged", 40), ("scaffold", 0, "interrupted", 40)]
    states += [("feddyn", 0, "done", ROUNDS)]
    for method, seed, state, rounds in states:
        settings = {"rounds": ROUNDS, "seed": seed, "algorithm": method}
        run = write_run(tmp_path / f"{method}-{seed}", settings, curves(seed, rounds=rounds), state)
        add_extras(run, seed, rounds)
    write_report([tmp_path], tmp_path / "out")
    found = {line["0"]: line for line in table(tmp_path / "out", "clients")}
    shown = {name.split()[0]: (line["mean"], line["seeds"]) for name, line in found.items()}
    assert shown.pop("fedprox") == ("N/A", "0")
    assert shown.pop("scaffold") == (f"40/{ROUNDS} rounds", "0")
    assert {name: seeds for name, (_, seeds) in shown.items()} == {"fedavg": "2", "feddyn": "1"}
    titles = [
        panel[0] for panel in data_of(tmp_path / "out")["tables"][0]["sections"][0]["picture"][3]
    ]
    assert [title.split()[0] for title in titles] == ["fedavg", "feddyn"]


@pytest.mark.usefixtures("no_figures")
def test_one_run_has_no_names_of_rows_and_no_intervals(runs, tmp_path):
    write_report([runs / "scaffold-0"], tmp_path / "out")
    found = table(tmp_path / "out", "clients")
    assert [line["0"] for line in found] == [*MODELS]
    assert re.fullmatch(rf"[+{MINUS}]\d+\.\d\d", found[1]["gain in mean"])
    assert "One seed: no interval" in (tmp_path / "out" / "report.md").read_text("utf-8")


@pytest.mark.usefixtures("no_figures")
def test_models_that_were_not_evaluated_on_clients_have_no_line(runs, tmp_path):
    shutil.copytree(runs / "scaffold-0", tmp_path / "run")

    def change(record: dict) -> None:
        record.get("clients", {}).pop("wima10", None)
        record.pop("finetuned", None)

    rewrite(tmp_path / "run", change)
    write_report([tmp_path / "run"], tmp_path / "out")
    assert [line["0"] for line in table(tmp_path / "out", "clients")] == ["plain"]
    assert not (tmp_path / "out" / "tables" / "runs-finetuned.csv").exists()


@pytest.mark.usefixtures("no_figures")
def test_a_real_run_with_everything_is_reported(tmp_path):
    settings = {"data": "digits", "clients": 20, "clients_per_round": 2, "rounds": 6, "window": 3}
    settings |= {"client_eval_every": 4, "client_test": 0.3, "calibration": True}
    settings |= {"finetune": "sgd:steps=2:lr=0.01", "engine": "serial"}
    launch(make_settings(settings), tmp_path / "run", report=lambda line: None)
    write_report([tmp_path / "run"], tmp_path / "out", Measure(target=0.01))
    last, first = records_of(tmp_path / "run")[-1], records_of(tmp_path / "run")[0]
    for model in ("plain", "wima3"):
        expected = {
            "clients": last["clients"][model]["mean"],
            "finetuned": last["finetuned"][model]["before"]["mean"],
        }
        for name, mean in expected.items():
            labels = [model, "before"][: 1 + (name == "finetuned")]
            assert line_of(tmp_path / "out", name, *labels)["mean"] == f"{100 * mean:.2f}"
        ece = last["metrics"][model]["ece"]  # a quarter of six rounds is one
        assert line_of(tmp_path / "out", "calibration", model)["ECE"] == f"{ece:.4f}"
    sent = place(tmp_path / "out", "fedavg on digits", "", "plain")["reached_bytes"]
    assert float(sent) == sum(first["bytes"].values())

"""Tables for papers: names, bold numbers, a short caption; the command is a comment."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.reports import COLUMN, LAST, ROUNDS, curves, make_sheet
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.experiments.plan import expand_grid
from wima.experiments.sheet import Cell, write_sheet
from wima.report.names import proper
from wima.report.write import write_report


@pytest.fixture
def sweep(tmp_path, no_figures) -> str:
    """The LaTeX of a sweep over two algorithms; the average is better in the first alone."""
    axes = ["algorithm=fedavg,scaffold"]
    sheet, jobs = expand_grid("sweep", "digits", ["window=10"], axes, [0, 1], "wima sweep 50%_x")
    for number, job in enumerate(jobs):
        own = curves(number)
        falls = 0.2 if "scaffold" in job.name else 0.0
        write_run(
            tmp_path / "in" / job.name,
            {"rounds": ROUNDS, "seed": job.settings.seed, "algorithm": job.settings.algorithm.name},
            {**own, "wima10": own["wima10"] - falls},
        )
    write_sheet(sheet._replace(last=LAST), tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out", Measure(target=0.5))
    return (tmp_path / "out" / "tables" / "sweep.tex").read_text(encoding="utf-8")


def code(text: str) -> str:
    """Without comments."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("%"))


def lines(text: str, name: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith(f"{{{name}}}")]
    return [row.removesuffix(r" \\").split(" & ") for row in rows]


def test_the_best_of_plain_and_averages_is_bold(sweep):
    for name, bold in (("FedAvg", 2), ("SCAFFOLD", 1)):
        cells = lines(sweep, name)[0]
        assert [i for i, cell in enumerate(cells) if cell.startswith(r"\textbf{")] == [bold]


def test_names_are_those_of_papers(sweep):
    assert lines(sweep, "Digits")[0] == ["{Digits}", "{plain}", "{WIMA, W = 10}", "{gain}"]
    assert "fedavg" not in code(sweep) and "algorithm=" not in code(sweep)


def test_the_caption_is_short_and_the_command_a_comment(sweep):
    [caption] = re.findall(r"\\caption\{\{(.*)\}\}", sweep)
    assert "wima sweep" not in code(sweep) and len(caption) < 350
    assert "% Command: wima sweep 50%_x" in sweep.splitlines()
    assert r"\toprule" in sweep and sweep.isascii()


def test_rounds_to_the_target_are_below(sweep):
    for number, name in ((0, "FedAvg"), (2, "SCAFFOLD")):
        seeds = [curves(number + seed)["plain"] for seed in (0, 1)]
        first = [int((values >= 0.5).argmax()) + 1 for values in seeds]
        assert lines(sweep, name)[1][1] == f"{{{sum(first) / 2:.0f}}}"
    assert "Below: rounds to a test accuracy of 50.00" in sweep


def test_a_name_that_comes_again_is_left_out(report):
    text = (report / "tables" / "sota.tex").read_text(encoding="utf-8")
    assert len(lines(text, "FedAvg")) == 2  # once in the table, once among the rounds to the target


def test_a_tie_is_not_bold(tmp_path, no_figures):
    own = curves(0)
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, {**own, "wima1": own["plain"]})
    cell = Cell("W = 1", COLUMN, 0, "run", {"plain": "plain", "average": "wima1"})
    names = {"rows": ["W = 1"], "columns": [COLUMN], "headings": ["plain", "average"]}
    write_sheet(make_sheet([cell], **names), tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out")
    assert r"\textbf" not in (tmp_path / "out" / "tables" / "sota.tex").read_text()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("algorithm=fedprox:mu=0.1, lr=0.1", "FedProx, mu = 0.1, lr = 0.1"),
        ("scaffold on cifar100-pam", "SCAFFOLD on CIFAR-100 PAM"),
        ("wima-auto", "WIMA, auto"),
        ("wima20-classifier", "WIMA, W = 20, classifier"),
        ("ema0.99", "EMA 0.99"),
        ("W = 20 (paper: 100)", "W = 20 (paper: 100)"),
        ("my data", "my data"),
    ],
)
def test_proper_names(given, expected):
    assert proper(given) == expected


def test_groups_and_dollars_are_balanced(sweep, report):
    for text in (sweep, (report / "tables" / "sota.tex").read_text(encoding="utf-8")):
        bare = re.sub(r"\\[{}\\]", "", code(text))
        assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0
        for tabular in re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", text, re.S):
            shape, *body = [line for line in tabular.splitlines() if line.endswith((r"\\", "r}"))]
            columns = {len(re.findall(r"(?<!\\)&", line)) for line in body}
            assert columns == {len(shape) - 3}


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_compiles_it_with_the_preamble_of_the_docs(report, sweep, tmp_path):
    docs = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    [preamble] = re.findall(r"```latex\n(.*?)```", docs, re.S)
    text = (report / "tables" / "sota.tex").read_text(encoding="utf-8")
    document = preamble.replace(r"\input{report/tables/sota}", f"{text}\n{sweep}")
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "t.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)

"""`wima compare`: what it writes and prints, what it refuses, and what its page says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.helpers.comparisons import HEIGHTS, ROUNDS, level, noisy, write_method
from tests.helpers.documents import section
from tests.helpers.paths import ROOT
from tests.helpers.run_folders import write_run
from wima.core.measure import Measure
from wima.report.compare import Comparison, compare, latex
from wima.report.figures import band_of, comparison_figure, draw_comparison
from wima.report.inputs import COMPARED

FILES = {COMPARED, *(f"compare.{ending}" for ending in ("md", "tex", "csv", "png", "pdf"))}
PAGE = section("reports.md", "Comparing methods over seeds")


def figure_of(made: Comparison) -> Figure:
    return comparison_figure(made.table)


@pytest.fixture
def three(tmp_path) -> Path:
    for method in HEIGHTS:
        write_method(tmp_path / "runs", method)
    return tmp_path / "runs"


def test_a_folder_with_all_files_is_written(three, cli):
    arguments = ("compare", "runs", "--model", "plain", "--out", "out")
    code, out, err = cli(*arguments)
    assert (code, err) == (0, "") and "out/compare.md" in out
    folder = Path("out")
    assert f"`{shlex.join(['wima', *arguments])}`" in (folder / "compare.md").read_text()
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "compare.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.usefixtures("no_figures")
def test_an_earlier_comparison_among_the_runs_is_not_foreign(three, cli):
    assert cli("compare", "runs", "--out", "runs/compared")[0] == 0
    for command in ("compare", "report"):
        code, _, err = cli(command, "runs", "--out", f"{command}d")
        assert (code, err) == (0, "")


@pytest.mark.usefixtures("no_figures")
def test_nothing_is_overwritten_but_an_earlier_comparison_with_force(three, cli, tmp_path):
    Path("mine").mkdir()
    Path("file").touch()
    for place in ("mine", "file", "runs"):
        code, _, err = cli("compare", "runs", "--out", place, "--force")
        assert code == 2 and "is not a comparison" in err
    assert cli("compare", "runs", "--out", "out")[0] == 0
    code, _, err = cli("compare", "runs", "--out", "out")
    assert code == 2 and "--force" in err
    code, _, err = cli("report", "runs", "--out", "out", "--force")
    assert code == 2 and "is not a report" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine", "out", "runs"]


def test_an_unwritable_place_is_a_users_mistake(three, cli):
    Path("file").touch()
    code, _, err = cli("compare", "runs", "--out", "file/out")
    assert code == 2 and "Cannot write" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "no runs to compare"),
        (["empty"], "not a run folder"),
        (["runs", "--baseline", "scafold"], "did you mean 'scaffold'?"),
        (["runs", "--baseline", "fedavg/wima6"], "did you mean 'fedavg/wima5'?"),
        (["runs", "--model", "wima7"], "did you mean 'wima5'?"),
        (["runs", "--by", "algoritm"], "did you mean 'algorithm'?"),
        (["runs", "--metric", "f1"], "it has accuracy, loss"),
        (["runs", "--last", "0"], "positive"),
        (["runs", "--target", "80"], "between 0 and 1"),
        (["runs/fedavg-s0", "runs/fedavg-s1", "--model", "plain"], "needs at least two"),
    ],
)
def test_wrong_input_is_explained(three, cli, arguments, told):
    Path("empty").mkdir()
    code, _, err = cli("compare", *arguments, "--out", "out")
    assert code == 2 and told in err and "Traceback" not in err
    assert not Path("out").exists()


def test_damaged_runs_are_named_and_the_others_compared(three, cli):
    (three / "fedprox-s1" / "records.jsonl").write_text("not json\n")
    code, out, err = cli("compare", "runs")
    assert code == 0 and "Left out runs/fedprox-s1: " in err
    assert "seeds 1 of fedavg/plain, which are missing in fedprox/plain" in out


def test_the_terminal_table_fits_in_100_columns(three, cli):
    write_method(three, "scaffold", seeds=(0, 1), lr=0.012345, batch_size=7, weight_decay=0.0001)
    code, out, _ = cli("compare", "runs", "--target", "0.5")
    table = out[: out.index("Test accuracy, %:")]
    assert code == 0 and max(map(len, table.splitlines())) <= 100
    base, own = (np.mean([level(m, "plain", s) for s in range(3)]) for m in ("fedavg", "scaffold"))
    assert f"{100 * own:.2f} ± " in table and f"{100 * (own - base):+.2f} [" in table


def test_names_of_others_are_shown_as_they_are(tmp_path, cli):
    split = "a_b$x^{2}[bold]&50%\\#~|.json"
    for seed in (0, 1):
        settings = {"rounds": ROUNDS, "seed": seed, "algorithm": "scaffold"}
        write_run(tmp_path / f"runs/a{seed}", settings, noisy("fedavg", seed))
        write_run(tmp_path / f"runs/b{seed}", {**settings, "split": split}, noisy("fedprox", seed))
    code, out, _ = cli("compare", "runs", "--baseline", "split=None", "--out", "out")
    assert code == 0 and f"split={split}" in out
    assert r"a\_b$x^{2}\[bold\]\&50%\\\#~\|.json" in Path("out/compare.md").read_text()
    check_latex(Path("out/compare.tex").read_text())


def check_latex(text: str) -> None:
    body = "\n".join(line for line in text.splitlines() if not line.startswith("%"))
    bare = re.sub(r"\\[{}\\$&]", "", body)
    assert bare.count("{") == bare.count("}") and bare.count("$") % 2 == 0 and text.isascii()
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len({len(re.findall(r"(?<!\\)&", line)) for line in rows}) == 1


def test_latex_has_booktabs_the_command_and_the_best_in_bold(three):
    made = compare([three], Measure())
    text = latex(made, "wima compare runs\n--out out")
    check_latex(text)
    assert text.startswith("% wima compare runs --out out")
    assert all(rule in text for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\caption"))
    strong = re.findall(r"\\textbf\{(\d[^}]*)\}", text)
    best = max(np.mean([level(m, "wima5", s) for s in range(3)]) for m in HEIGHTS)
    assert len(strong) == 1 and strong[0].startswith(f"{100 * best:.2f} $\\pm$ ")


def test_latex_compiles(three, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    frame = r"\documentclass{article}\usepackage{booktabs}\begin{document}%s\end{document}"
    text = latex(compare([three], Measure(target=0.5)), "wima compare runs")
    (tmp_path / "t.tex").write_text(frame % f"\n{text}", encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "t.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)


def test_curves_are_means_over_seeds_with_their_deviation(three):
    made = compare([three], Measure())
    row = made.rows[0]
    band = band_of(row.members)
    values = np.stack([noisy("fedavg", seed)["plain"] for seed in range(3)])
    assert band.rounds.tolist() == list(range(1, ROUNDS + 1))
    np.testing.assert_allclose(band.mean.values, values.mean(axis=0))
    axes = figure_of(made).axes[0]
    extent = axes.collections[0].get_paths()[0].get_extents()
    spread = values.std(axis=0, ddof=1)
    ends = 100 * (values.mean(axis=0) - spread).min(), 100 * (values.mean(axis=0) + spread).max()
    np.testing.assert_allclose((extent.ymin, extent.ymax), ends)


def test_plain_is_thin_and_few_evaluations_are_points(tmp_path):
    for method in ("fedavg", "scaffold"):
        write_method(tmp_path / "few", method)
        write_method(tmp_path / "many", method, rounds=200)
    for folder, marker in (("few", "o"), ("many", "None")):
        curves = figure_of(compare([tmp_path / folder], Measure())).axes[0]
        plain, average, *_ = curves.get_lines()
        assert plain.get_linewidth() < average.get_linewidth()
        assert str(plain.get_marker()) == marker
        assert curves.get_ylabel() == "test accuracy, %" and len(curves.collections) == 4


def test_the_picture_shows_differences_with_their_intervals(three):
    made = compare([three], Measure(), models=["plain"])
    forest = figure_of(made).axes[1]
    labels = [text.get_text() for text in forest.get_yticklabels()]
    assert labels == ["fedavg", "fedprox", "scaffold"]
    found = made.rows[2].gain
    ends = [100 * (found.mean - found.half), 100 * (found.mean + found.half)]
    drawn = [line.get_xdata() for line in forest.get_lines() if list(line.get_ydata()) == [2, 2]]
    np.testing.assert_allclose(drawn[0], ends)


def test_drawing_needs_no_number_and_leaves_other_figures_alone(tmp_path):
    for method in ("fedavg", "scaffold"):
        write_method(tmp_path / "runs", method, seeds=[0], state="diverged")
    before, made = dict(mpl.rcParams), compare([tmp_path / "runs"], Measure())
    pictures = []
    for _ in range(2):
        draw_comparison(made.table, tmp_path)
        pictures.append([path.read_bytes() for path in sorted(tmp_path.glob("compare.*"))])
    assert pictures[0] == pictures[1] and dict(mpl.rcParams) == before


def commands() -> list[list[str]]:
    blocks = re.findall(r"```\n(.*?)```", PAGE, flags=re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("wima ")]
    return [shlex.split(line, comments=True)[1:] for line in lines]


@pytest.mark.usefixtures("no_figures")
def test_the_commands_of_the_page_work(cli, tmp_path):
    for method in HEIGHTS:
        write_method(tmp_path / "runs" / "mine", method)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    called = []
    for command, *arguments in commands():
        paths = [str(p) for a in arguments for p in (sorted(Path().glob(a)) if "*" in a else [a])]
        code, out, err = cli(command, *paths, *["--dry-run"] * (command == "sweep"))
        assert code == 0 and err == "", err
        called.append((command, out))
    assert {command for command, _ in called} == {"sweep", "compare"}
    shown = re.search(r"```text\n(.*?)```", PAGE, flags=re.S)[1]
    printed = next(out for _, out in called if "docs/results" not in out and "fedacg" in out)
    assert [line.rstrip() for line in printed.splitlines() if line.strip()] == [
        line.rstrip() for line in shown.splitlines() if line.strip()
    ]

"""Whatever runs and sheets are called, a report shows their names as text, in its own folder."""

from __future__ import annotations

import csv
import re
import shutil
from xml.etree import ElementTree

import numpy as np

from tests.helpers.reports import ROUNDS, curves, data_of, make_sheet
from tests.helpers.run_folders import write_run
from wima.experiments.sheet import Cell, write_sheet
from wima.report.write import write_report
from wima.runs.run import read_run
from wima.runs.summary import draw_curves

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_names_from_run_folders_cannot_leave_the_data(tmp_path):
    name = "<script>alert(1)<!--"
    settings = {"rounds": ROUNDS, "data": "<b>&amp;\\textbf{x}|`"}
    write_run(tmp_path / "in" / name, settings, {"plain": curves(0)["plain"], EVIL: np.ones(3)})
    cell = Cell(EVIL, EVIL, 0, name, {"plain": "plain", EVIL: EVIL})
    fields = {"rows": [EVIL], "columns": [EVIL], "headings": ["plain", EVIL]}
    sheet = make_sheet([cell], **fields, title=EVIL, note=EVIL, command=EVIL)
    write_sheet(sheet, tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out")
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert len(re.findall("<script", text)) == 2 and "alert(1)<" not in text
    assert data_of(tmp_path / "out")["tables"][0]["title"] == EVIL
    assert "<script" not in (tmp_path / "out" / "tables" / "sota.md").read_text().replace("\\<", "")


def test_a_sheet_cannot_write_outside_the_report(tmp_path):
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, curves(0))
    cell = Cell("a", "b", 0, "run", {"plain": "plain"})
    names = {"rows": ["a"], "columns": ["b"], "headings": ["plain"]}
    sheet = make_sheet([cell], name="sota", **names)
    path = write_sheet(sheet, tmp_path / "in")
    path.write_text(path.read_text().replace('"name": "sota"', '"name": "../../sota"'))
    shutil.copy(path, tmp_path / "in" / "again.sheet.json")
    write_report([tmp_path / "in"], tmp_path / "out")
    tables = sorted(p.name for p in (tmp_path / "out" / "tables").glob("*.md"))
    assert tables == ["sota-2.md", "sota.md"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_a_name_that_is_no_text_is_written_all_the_same(tmp_path):
    odd = tmp_path / "in" / "caf\udce9"
    write_run(odd, {"rounds": ROUNDS}, curves(0))
    (odd / "environment.json").write_text('{"processor": NaN, "python": "\\ud800"}')
    write_report([tmp_path / "in"], tmp_path / "out")
    assert data_of(tmp_path / "out")["runs"][0]["name"] == str(odd)


def test_a_sheet_with_names_that_no_font_has_is_drawn(tmp_path):
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, curves(0))
    cell = Cell("行 \ud800", "$\x01^", 0, "run", {"plain": "plain"})
    names = {"rows": [cell.row], "columns": [cell.column], "headings": ["plain"]}
    write_sheet(make_sheet([cell], title="_$\ud800", **names), tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out")
    ElementTree.parse(tmp_path / "out" / "figures" / "sota.svg")
    assert data_of(tmp_path / "out")["tables"][0]["rows"] == [cell.row]


def test_names_are_no_formulas_in_a_spreadsheet(tmp_path, no_figures):
    write_run(tmp_path / "in" / "run", {"rounds": ROUNDS}, curves(0))
    cell = Cell("=1+1", "@SUM(A1)", 0, "run", {"plain": "plain", "+cmd|x": "wima5"})
    names = {"rows": [cell.row], "columns": [cell.column], "headings": ["plain", "+cmd|x"]}
    write_sheet(make_sheet([cell], **names), tmp_path / "in")
    write_report([tmp_path / "in"], tmp_path / "out")
    files = [tmp_path / "out" / "data.csv", *(tmp_path / "out" / "tables").glob("*.csv")]
    cells = [i for f in files for line in csv.reader(f.read_text().splitlines()) for i in line]
    assert {"'=1+1", "'@SUM(A1)", "'+cmd|x"} <= set(cells)
    assert not any(re.match(r"[=@]|[-+][^\d]", item) for item in cells)


def test_a_run_folder_of_any_name_is_listed(cli, tmp_path):
    for name in ("[b]", "a\x1b[31m", ":x:"):
        write_run(tmp_path / "in[/b]" / name, {"rounds": ROUNDS}, curves(0))
    code, out, err = cli("runs", "in[/b]")
    assert code == 0 and not err and "\x1b" not in out
    assert all(name in out for name in ("Runs in in[/b]", " [b] ", r" a\x1b[31m ", " :x: "))
    code, out, err = cli("runs", "[/b]\x1b[1m")
    assert code == 2 and r"[/b]\x1b[1m is not a folder" in err


def test_names_are_no_formulas_of_mathematics_in_a_picture(tmp_path):
    odd = r"$\nothing$"
    write_run(tmp_path / "run", {"rounds": ROUNDS, "data": f"{odd}.npz"}, {odd: np.ones(3)})
    run = read_run(tmp_path / "run")
    draw_curves(run.curves, run.title, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").exists()

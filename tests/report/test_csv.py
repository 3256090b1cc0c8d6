"""CSV that readers and spreadsheets take as it is meant, whatever the names are."""

from __future__ import annotations

import csv
import io
from math import nan

import pytest

from wima.report.text import csv_text


def rows(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@pytest.mark.parametrize(
    "name", ["a\rb", "a\r\nb", "a\nb", "a\r=1+1", "\r=1", "\n=1", "a\x0b\x85\u2028b"]
)
def test_a_cell_never_starts_a_row(name):
    text = csv_text(["method", "mean"], [[name, 0.5]])
    assert len(text.splitlines()) == 2 and "\r" not in text
    assert [len(row) for row in rows(text)] == [2, 2]


@pytest.mark.parametrize(
    "name", ["=1+1", "+1+1", "-1+1", "@SUM(1)", " =1+1", "\t=1", "＝1+1", '=a;b,c"d']
)
def test_no_text_is_a_formula(name):
    [_, [cell, _]] = rows(csv_text(["method", "mean"], [[name, 0.5]]))
    assert cell.startswith("'") and cell[1:] == name.replace("\t", "\\t")


@pytest.mark.parametrize("name", ["a;=1+1", "a\t=1+1", "a b", "a,b", 'say "x"', "'=1", "ä"])
def test_all_text_is_quoted(name):
    """Where a spreadsheet separates by semicolons, a cell must not fall apart."""
    text = csv_text(["mean"], [[name, 0.5]])
    assert text.startswith('"mean"\n"') and text.endswith('",0.5\n')
    assert rows(text)[1][0] == name.replace("\t", "\\t")


def test_numbers_stay_numbers():
    line = [1, 0.1, 1e-09, nan, None, "", -2.5, "97.31", "-3", "+1.56 [+1.00, +2.13]*†", "−0.12"]
    text = csv_text(["x"], [line])
    assert text == '"x"\n1,0.1,1e-09,,,,-2.5,97.31,-3,"+1.56 [+1.00, +2.13]*†","−0.12"\n'

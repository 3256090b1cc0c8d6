"""Names that others chose, on terminals and in spreadsheets."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.table import Table

from wima.core.text import cell, in_spreadsheet, printable


def test_escape_sequences_are_shown_not_executed():
    assert printable("a\x1b[31mred\x07") == r"a\x1b[31mred\x07"
    assert printable("a\x9b31m\x7f\x85\rb") == r"a\x9b31m\x7f\x85\rb"
    assert printable("evil\u202etxt.exe \udc80") == r"evil\u202etxt.exe \udc80"


def test_other_characters_stay():
    text = "naïve ± 3 %\tα → 日本\n[b]"
    assert printable(text) == text


@pytest.mark.parametrize("name", ["[/b]", "[red]x", ":smile:", "a\\[b", "[link=x]y[/link]", "a\nb"])
def test_names_are_no_markup_in_tables(name):
    table = Table(title=cell(name))
    table.add_column(cell(name))
    table.add_row(cell(name))
    console = Console(width=80, force_terminal=False)
    with console.capture() as got:
        console.print(table)
    assert got.get().count(name.replace("\n", "\\n")) == 3


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd", "@SUM(A1)", " =1", "\t=1", "\r=1", "\n=1"]
)
def test_formulas_are_texts_on_one_line(text):
    assert in_spreadsheet(text) == "'" + text.encode("unicode_escape").decode()


@pytest.mark.parametrize(
    "text", ["-1.5", "+0.52 [−0.10, +1.14]*", "+2.00 (+1.50)", "-1e-05", "a=b", ""]
)
def test_numbers_and_other_texts_stay(text):
    assert in_spreadsheet(text) == text

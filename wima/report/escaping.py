"""Escapes text so that Markdown and LaTeX show it literally."""

from __future__ import annotations

import re
from collections.abc import Sequence

SPECIAL = {char: "\\" + char for char in "&%$#_{}"}
SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
SPECIAL |= {"±": r"$\pm$", "α": r"$\alpha$", "−": "$-$", "<": "$<$", ">": "$>$", '"': "''"}
SPECIAL |= {"†": r"$\dagger$", "≤": r"$\le$"}


def in_markdown(text: str) -> str:
    """Text for Markdown, on one line; the rule under a table's header is unchanged."""
    if set(text) <= set("-:"):
        return text
    return re.sub(r"([\\`*_<>\[\]|&#])", r"\\\1", " ".join(text.split()))


def markdown_table(labels: int, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first `labels` columns are names, the others numbers."""
    rule = ["---"] * labels + ["---:"] * (len(header) - labels)
    rows = [header, rule, *lines]
    return "\n".join("| " + " | ".join(in_markdown(text) for text in row) + " |" for row in rows)


def in_latex(text: str) -> str:
    """Text for LaTeX; characters that pdflatex may not know become a question mark."""
    known = (SPECIAL.get(c, c if " " <= c <= "~" or "\xa0" < c <= "ÿ" else "?") for c in text)
    return "{" + "".join(known) + "}"

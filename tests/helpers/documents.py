"""The README and the pages: their sections, fenced blocks and commands.

What is fenced as `python` is run, from the top of a page to its end as one script; `py` marks
pieces of code that need things of the reader, such as a training loop.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT

DOCS = ROOT / "docs"
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def section(page: str, heading: str) -> str:
    """What a page of `docs/` has below a heading of the second level."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text_of(DOCS / page), re.M | re.S)
    return str(text)


def links(page: Path) -> list[str]:
    """The links of a page or a notebook that stay in the repository."""
    text = text_of(page)
    if page.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n".join("".join(cell["source"]) for cell in cells)
    return re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page, in these languages if any are named."""
    found = FENCE.findall(text_of(page))
    return [text for language, text in found if not languages or language in languages]


def files() -> dict[str, str]:
    """The files that pages show: blocks of Python whose first line is a comment with the name."""
    found = (re.match(r"# (\w+\.py)\n", code) for page in PAGES for code in blocks(page))
    return {match[1]: match.string for match in found if match}


def commands() -> list[str]:
    """What follows `wima` in blocks, and `wima run digits` in running text, without comments."""
    found: dict[str, None] = {}
    for page in PAGES:
        lines = "\n".join(blocks(page)).replace("\\\n", " ").splitlines()
        lines += re.findall(r"`(wima run digits[^`]*)`", FENCE.sub("", text_of(page)))
        for line in lines:
            words = shlex.split(line, comments=True) if line.startswith("wima ") else []
            if words and words[1] != "--install-completion":  # which changes a shell
                found[shlex.join(words[1:])] = None
    return list(found)


def run(page: Path) -> dict[str, Any]:
    """Execute a page's blocks; the names they made."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)
    return names

"""Text that others wrote, names of files for example, on a terminal and in spreadsheets."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

# Control characters but tab and newline; marks that reorder text; halves of characters.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
NUMBER = re.compile(r"-|[-+]?[\d.]+(?:e[-+]?\d+)?(?: [\[(][-+−\d., ]*[\])]\*?†?)*")  # of a report


def printable(text: str) -> str:
    """The text with characters that steer a terminal as escapes."""
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def echo(text: str, file: TextIO | None = None) -> None:
    """Print a text that may hold names of others."""
    print(printable(text), file=file or sys.stdout)


def typed_command() -> list[str]:
    """What was typed to start this process; `wima` and `python -m wima` are the same."""
    program = Path(sys.argv[0])
    if program.name != "__main__.py":
        return [program.name, *sys.argv[1:]]
    package = program.parent.name
    return [*(["wima"] if package == "wima" else ["python", "-m", package]), *sys.argv[1:]]


def command_line() -> str:
    """The command that started this process, as a shell reads it."""
    return shlex.join(typed_command())


def cell(text: str) -> Text:
    """A text for tables of rich, which would take [b] and :x: for markup."""
    from rich.text import Text

    return Text(printable(text).replace("\n", "\\n"))


def in_spreadsheet(text: str) -> str:
    """The text with a ' before it if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text

"""Untrusted text, such as file names, made safe for terminals and spreadsheets."""

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

# Control characters except tab and newline; marks that reorder text; surrogates.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
FORMULA = tuple("=+-@＝＋－＠")  # at the start of a cell
NUMBER = re.compile(r"-|[-+]?[\d.]+(?:e[-+]?\d+)?(?: [\[(][-+−\d., ]*[\])]\*?†?)*")  # in reports


def printable(text: str) -> str:
    """The text with characters that control a terminal escaped."""
    return STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def echo(text: str, file: TextIO | None = None) -> None:
    """Print text that may contain untrusted names."""
    print(printable(text), file=file or sys.stdout)


def typed_command() -> list[str]:
    """The command typed to start this process; `python -m wima` becomes `wima`."""
    program = Path(sys.argv[0])
    if program.name != "__main__.py":
        return [program.name, *sys.argv[1:]]
    package = program.parent.name
    return [*(["wima"] if package == "wima" else ["python", "-m", package]), *sys.argv[1:]]


def command_line() -> str:
    """The command that started this process, quoted for a shell."""
    return shlex.join(typed_command())


def cell(text: str) -> "Text":
    """Text for a rich table, where [b] and :x: would be read as markup."""
    from rich.text import Text

    return Text(printable(text).replace("\n", "\\n"))


def in_spreadsheet(text: str) -> str:
    """The text on one line, prefixed with ' if a spreadsheet would read it as a formula."""
    line = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    starts = text.lstrip().startswith(FORMULA) and not NUMBER.fullmatch(text)
    return f"'{line}" if starts else line

"""What MkDocs and mkdocstrings leave to us.

Pages are written for GitHub, where links may leave the folder `docs`; on the site these lead to
the repository.  The first page is the README, another one SECURITY.md.  Pages of the reference name
packages, and get an entry for each public name in them.  Docstrings are written for terminals: each
line "name: ..." that explains a parameter or a field becomes an item of a list, and names in the
reference become links.
"""

from __future__ import annotations

import importlib
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/wima-fl/wima"
LINK = re.compile(r"\]\(((?!https?:|mailto:|#)[^)#\s]+)(#[^)\s]*)?\)")
ENTRY = re.compile(r"^::: (\S+)$", re.M)
PUBLIC = re.compile(r"<!-- public names of (.+) -->")
SOURCE = griffe.load("wima", search_paths=[ROOT])  # says where public names come from
ELSEWHERE = {"docs/index.md": "README.md", "docs/security.md": "SECURITY.md"}
NOT_PAGES = "docs/results/"  # records of runs; mkdocs.yml leaves them out of the site
log = logging.getLogger("mkdocs.hooks")  # a warning fails the build


def public_names(package: str) -> list[str]:
    """The names that users import, of `wima.flower` or of what `wima` has from that package."""
    if package == "wima.flower":
        return [f"{package}.{name}" for name in importlib.import_module(package).__all__]
    names = importlib.import_module("wima").__all__
    return [f"wima.{n}" for n in names if f"{SOURCE[n].target_path}.".startswith(f"{package}.")]


def with_entries(markdown: str) -> str:
    """A page of the reference with the entries for the packages that it names."""

    def entries(match: re.Match[str]) -> str:
        names = [name for package in match[1].split() for name in public_names(package)]
        return "\n\n".join(f"::: {name}" for name in names)

    return PUBLIC.sub(entries, markdown)


ENTRIES = {  # of the reference, by the last part of their names
    entry.rpartition(".")[2]: entry
    for path in sorted((ROOT / "docs" / "reference").glob("*.md"))
    for entry in ENTRY.findall(with_entries(path.read_text(encoding="utf-8")))
}


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The text of a page of the site; links to files that are not part of it lead to GitHub."""
    source = f"docs/{page.file.src_uri}"
    if source in ELSEWHERE:
        source = ELSEWHERE[source]
        markdown = (ROOT / source).read_text(encoding="utf-8")

    def site_link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if target.startswith("docs/") and not f"{target}/".startswith(NOT_PAGES):
            here = posixpath.dirname(f"docs/{page.file.src_uri}")
            return f"]({posixpath.relpath(target, here)}{match[2] or ''})"  # MkDocs checks these
        if not (ROOT / target).exists():
            log.warning("%s links to %s, which does not exist.", source, match[1])
        kind = "tree" if (ROOT / target).is_dir() else "blob"
        return f"]({REPOSITORY}/{kind}/main/{target}{match[2] or ''})"

    return with_entries(LINK.sub(site_link, markdown))


class Docstrings(griffe.Extension):
    """Docstrings as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text, heading, examples = obj.docstring.value.partition("\nExamples:\n")
            listed = with_lists(text, _names(obj)) + _fields(obj)
            obj.docstring.value = linked(listed) + heading + examples


def with_lists(text: str, names: set[str]) -> str:
    """The text, with an item of a list for each of the names that a line explains."""
    lines = []
    for line in text.split("\n"):
        name, colon, meaning = line.partition(": ")
        lines.append(f"\n- **{name}**: {meaning}" if colon and name in names else line)
    return "\n".join(lines)


def linked(text: str) -> str:
    """The text, with links to the entries of the reference."""
    return re.sub(r"`(\w+)`", lambda m: _link(m[1]) if m[1] in ENTRIES else m[0], text)


def _link(name: str) -> str:
    return f"[`{name}`][{ENTRIES[name]}]"


def _names(obj: griffe.Object) -> set[str]:
    """The parameters and fields that a docstring may explain."""
    init = obj.members.get("__init__") if obj.is_class else obj
    parameters = init.parameters if isinstance(init, griffe.Function) else ()
    return {p.name.lstrip("*") for p in parameters} | set(obj.members)


def _fields(obj: griffe.Object) -> str:
    """What comments say of the fields of a class; all fields where no signature shows them."""
    if not isinstance(obj, griffe.Class):
        return ""
    unsigned = {"NamedTuple", "TypedDict"} & {str(base) for base in obj.bases}
    items = []
    for field in obj.attributes.values():
        if field.annotation is None or field.is_private or "property" in field.labels:
            continue
        comment = "".join(field.lines).partition("  # ")[2]
        default = "" if field.value is None else f" = {field.value}"
        shown = f"`{field.name}: {field.annotation}{default}`" if unsigned else f"**{field.name}**"
        if comment or unsigned:
            items.append(f"\n- {shown}" + (f": {comment}" if comment else "") + "\n")
    return "".join(["\n", *items]) if items else ""

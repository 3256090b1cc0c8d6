"""The documentation site: complete, without broken links, and without the network."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import wima
import wima.flower
from tests.helpers.browser import Browser, find_browser
from tests.helpers.paths import ROOT
from wima.cli.reference import page

pytestmark = pytest.mark.site

DOCS = ROOT / "docs"
ENTRIES = [
    entry
    for path in sorted((DOCS / "reference").glob("*.md"))
    for entry in re.findall(r"^::: (\S+)$", path.read_text(encoding="utf-8"), re.M)
]
ASSET = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]+)"|<link\s[^>]*>')
LOADED = re.compile(r'rel="(?:stylesheet|icon|preload|preconnect|dns-prefetch|manifest)"')


def test_every_public_name_has_one_entry_in_the_reference():
    public = {f"{p.__name__}.{name}" for p in (wima, wima.flower) for name in p.__all__}
    assert public - set(ENTRIES) == set()
    assert len(ENTRIES) == len(set(ENTRIES))


@pytest.mark.parametrize("entry", ENTRIES)
def test_an_entry_of_the_reference_names_something_that_there_is(entry):
    module, _, name = entry.rpartition(".")
    assert hasattr(import_module(module), name)


def test_the_page_on_the_command_line_is_up_to_date():
    written = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m wima.cli.reference > docs/cli.md"


def test_the_first_page_shows_code_that_runs(capsys):
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(code, "index.md", "exec"), {"__name__": "index"})
        assert capsys.readouterr().out


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_every_page(site):
    pages = {path.relative_to(DOCS) for path in DOCS.rglob("*.md")} - {Path("results/notes.md")}
    names = {p.with_name("index.md") if p.name == "README.md" else p for p in pages}
    built = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert built == names | {Path("404.md")}
    assert not (site / "results").exists() and not list(site.rglob("*.py"))


def test_pages_load_nothing_from_other_hosts(site):
    for path in site.rglob("*.html"):
        found = list(ASSET.finditer(path.read_text(encoding="utf-8")))
        loaded = [m[1] or m[0] for m in found if m[1] or LOADED.search(m[0])]
        assert loaded and not [asset for asset in loaded if "//" in asset]
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", path.read_text(encoding="utf-8"))


def test_links_that_leave_the_pages_lead_to_the_repository(site):
    text = (site / "averaging.html").read_text(encoding="utf-8")
    assert 'href="https://github.com/wima-fl/wima/blob/main/examples/training_loop.py"' in text
    text = (site / "choosing-w.html").read_text(encoding="utf-8")
    assert 'href="https://github.com/wima-fl/wima/tree/main/docs/results/auto"' in text


@pytest.fixture
def browser(tmp_path) -> Iterator[Browser]:
    program = find_browser()
    if program is None:
        pytest.skip("no browser is installed")
    browser = Browser(program, tmp_path / "profile")
    yield browser
    browser.close()


def test_search_finds_a_name_without_a_network(site, browser):
    browser.open(site / "index.html")
    browser.js("document.querySelector('.md-search__input').focus()")
    browser.wait("document.querySelector('.md-search-result__meta')?.innerText !== ''")
    for letter in "PowerEMA":
        browser.key(letter)
    browser.wait("document.querySelectorAll('.md-search-result__item').length > 0")
    first = browser.js("document.querySelector('.md-search-result__item a').href")
    assert "averagers.html" in first
    assert not [url for url in browser.requests if not url.startswith(("file:", "data:"))]
    assert browser.errors == []

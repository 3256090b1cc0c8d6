"""The documentation site: complete, without broken links, and without the network."""

from __future__ import annotations

import re
import runpy
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
from tests.helpers.documents import DOCS, text_of
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.site
ASSET = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]+)"|<link\s[^>]*>')
LOADED = re.compile(r'rel="(?:stylesheet|icon|preload|preconnect|dns-prefetch|manifest)"')


def test_the_reference_has_one_entry_for_every_public_name_and_none_for_nothing():
    pytest.importorskip("griffe", reason="the extra docs is not installed")
    hooks = runpy.run_path(str(DOCS / "hooks.py"))
    pages = [hooks["with_entries"](text_of(p)) for p in (DOCS / "reference").glob("*.md")]
    entries = [entry for page in pages for entry in hooks["ENTRY"].findall(page)]
    public = {f"{p.__name__}.{name}" for p in (wima, wima.flower) for name in p.__all__}
    assert public - set(entries) == set() and len(entries) == len(set(entries))
    for module, _, name in (entry.rpartition(".") for entry in entries):
        assert hasattr(import_module(module), name), f"{module}.{name}"


def test_the_page_on_the_command_line_is_up_to_date():
    written = (DOCS / "cli.md").read_text(encoding="utf-8")
    page = runpy.run_path(str(DOCS / "commands.py"))["page"]
    assert written == page(), "run: python docs/commands.py > docs/cli.md"


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
    pages = {p.relative_to(DOCS) for p in DOCS.rglob("*.md") if "results" not in p.parts}
    built = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert built == pages | {Path("404.md")}
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
    text = (site / "index.html").read_text(encoding="utf-8")  # the README
    assert 'href="https://github.com/wima-fl/wima/blob/main/CITATION.cff"' in text
    assert 'href="averaging.html#saved-checkpoints"' in text and 'src="demo.png"' in text


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
    assert "simulation.html" in first or "averagers.html" in first
    assert not [url for url in browser.requests if not url.startswith(("file:", "data:"))]
    assert browser.errors == []

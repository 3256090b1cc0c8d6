"""What a release is made of: one version, valid metadata, a wheel that needs no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import wima
from tests.helpers.commands import LIMIT
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.site

RELEASED = re.compile(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", re.MULTILINE)
LINK = re.compile(r"(!?)\[[^]]*\]\(([^)]*)\)")
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_stated_once_and_the_newest_in_changelog_and_citation():
    project = tomllib.loads(text_of("pyproject.toml"))
    assert "version" not in project["project"] and "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "wima/core/version.py"
    assert VERSION.fullmatch(wima.__version__)
    version, date = RELEASED.findall(text_of("CHANGELOG.md"))[0]
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert (version, version) == (wima.__version__, str(citation["version"]))
    assert date == str(citation["date-released"])


def test_every_version_in_the_changelog_has_its_link_and_the_unreleased_part_starts_there():
    changes, tags = text_of("CHANGELOG.md"), "https://github.com/wima-fl/wima"
    versions = [version for version, _ in RELEASED.findall(changes)]
    assert f"[Unreleased]: {tags}/compare/v{versions[0]}...HEAD" in changes
    for version in versions:
        assert f"[{version}]: {tags}/" in changes


def test_the_citation_has_what_its_format_requires():
    """https://github.com/citation-file-format/citation-file-format, version 1.2.0"""
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    for work in (citation, citation["preferred-citation"]):
        assert work["title"] and work["authors"]
        assert all("name" in author or "family-names" in author for author in work["authors"])
    assert citation["message"] and citation["preferred-citation"]["type"] == "conference-paper"
    assert citation["license"] == tomllib.loads(text_of("pyproject.toml"))["project"]["license"]


@pytest.mark.parametrize(("tag", "code"), [(f"v{wima.__version__}", 0), ("v99.0.0", 1)])
def test_a_tag_that_is_not_the_version_is_refused(tag, code):
    (step,) = [s for s in release()["jobs"]["version"]["steps"] if "run" in s]
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        cwd=ROOT,
        env={**os.environ, "GITHUB_REF_NAME": tag},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert (f"expected the tag v{wima.__version__}" in done.stdout) == bool(code)


def test_what_is_published_was_tested_and_nothing_else_can_publish():
    jobs = release()["jobs"]
    order = {name: job.get("needs") for name, job in jobs.items()}
    assert order == {"version": None, "test": "version", "build": "test", "publish": "build"}
    allowed = [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})]
    assert allowed == ["publish"] and jobs["publish"]["environment"]["name"] == "pypi"
    assert not any("run" in step for step in jobs["publish"]["steps"])


def release() -> dict:
    return yaml.safe_load(text_of(".github/workflows/release.yml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that the checkout stays as it is."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "wima", source / "wima", ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(source))
    (made,) = out.glob("*.whl")
    return made


def printed(*command: str, cwd: Path | None = None) -> str:
    """What a command prints that has to end well, and finds no checkout by PYTHONPATH."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def pip(*arguments: str) -> None:
    printed(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def test_the_wheel_has_all_files_of_the_package(wheel):
    """Presets, experiments, the report's page and py.typed too."""
    files = [path for path in (ROOT / "wima").rglob("*") if path.is_file()]
    expected = {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if not name.split("/")[0].endswith("-info")}
    assert found == expected
    assert wheel.name == f"wima-{wima.__version__}-py3-none-any.whl"


def test_links_and_pictures_on_pypi_name_files_of_the_repository(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        text = archive.read(name).decode()
    blob, raw = "github.com/wima-fl/wima/blob/main", "raw.githubusercontent.com/wima-fl/wima/main"
    here = LINK.findall(text_of("README.md"))
    expected = [(mark, f"https://{raw if mark else blob}/{path}") for mark, path in here]
    assert LINK.findall(text) == expected and {mark for mark, _ in here} == {"", "!"}
    assert all((ROOT / path.partition("#")[0]).is_file() for _, path in here)


@pytest.mark.slow
def test_the_installed_wheel_runs_the_demo_and_reports_without_the_checkout(wheel, tmp_path):
    """In an environment of its own, which borrows the packages that wima needs from this one."""
    clean, elsewhere = tmp_path / "clean", tmp_path / "elsewhere"
    elsewhere.mkdir()
    venv.create(clean, with_pip=False, symlinks=True)
    python = clean / "bin" / "python"
    pip("--python", str(python), "install", "--no-deps", "--no-index", "--no-compile", str(wheel))
    (site,) = clean.glob("lib/python*/site-packages")
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "borrowed.pth").write_text("\n".join(sorted(borrowed)))

    def here(program: str, *arguments: str) -> str:
        return printed(str(clean / "bin" / program), *arguments, cwd=elsewhere)

    where = here("python", "-c", "import wima; print(wima.__file__)").strip()
    assert Path(where).resolve() == (site / "wima" / "__init__.py").resolve()
    assert here("wima", "--version") == f"wima {wima.__version__}\n"
    assert "wima50" in here("wima", "demo", "--out", "demo")
    here("wima", "report", "demo", "--out", "report")
    page = (elsewhere / "report" / "index.html").read_text(encoding="utf-8")
    for part in ("page.css", "chart.js"):  # of which the page is put together
        assert text_of(f"wima/report/web/{part}").strip()[:200] in page

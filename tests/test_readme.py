"""What the README and the examples say runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import wima
from tests.helpers.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.S)


def accuracies(text: str) -> dict[str, float]:
    """By model: shares after its name, or percents in a table's second column."""
    shares = re.findall(r"(\w+):? (0\.\d+|1\.0)", text)
    percents = re.findall(r"^│ (\S+) +│ +([\d.]+) │", text, re.M)
    return dict([(n, float(v)) for n, v in shares] + [(n, float(v) / 100) for n, v in percents])


@pytest.mark.parametrize("code", BLOCKS, ids=["any-loop", "ten-lines"])
def test_python_blocks_run(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    found = accuracies(capsys.readouterr().out)
    assert len(found) > 1 and found["plain"] > 0.5  # ten classes or three: far above chance
    assert all(value > found["plain"] for name, value in found.items() if "wima" in name)


def test_first_example_has_about_ten_lines() -> None:
    assert len([line for line in BLOCKS[1].splitlines() if line.strip()]) <= 11


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    found = accuracies(capsys.readouterr().out)
    averages = [value for name, value in found.items() if "wima" in name and name != "wima10"]
    assert averages and all(value > found["plain"] for value in averages)


def test_public_names_are_those_of_all() -> None:
    for name in wima.__all__:
        assert getattr(wima, name).__name__ == name
    assert set(dir(wima)) == {*wima.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = wima.nonsense


def test_repository_holds_no_machine_paths() -> None:
    suspicious = re.compile(r"/(root|home|work)/\w")
    found = [
        str(path.relative_to(ROOT))
        for pattern in (
            "wima/**/*.py",
            "docs/**/*.md",
            "*.md",
            "tests/**/*.py",
            "examples/**/*.py",
            "examples/**/*.ipynb",
        )
        for path in ROOT.glob(pattern)
        if suspicious.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []

"""The audit of dependencies fails for findings and for its own mistakes, not without a network."""

from __future__ import annotations

import sys

import pytest
import yaml

from tests.audit import CONSTRAINTS, main
from tests.helpers.paths import ROOT

FINDING = "Found 1 known vulnerability in 1 package"
OFFLINE = "requests.exceptions.ConnectionError: Max retries exceeded"


@pytest.mark.parametrize(
    ("says", "code", "expected", "shown"),
    [
        ("No known vulnerabilities found", 0, 0, "No known"),
        (FINDING, 1, 1, FINDING),
        (OFFLINE, 1, 0, "Not audited: no database. requests.exceptions.ConnectionError"),
        (f"{OFFLINE}\n{FINDING}", 1, 1, FINDING),
        ("pip-audit: error: unrecognized arguments", 2, 2, "unrecognized"),
    ],
)
def test_only_findings_and_mistakes_fail(says, code, expected, shown, capsys):
    script = f"import sys; sys.stderr.write({says!r}); sys.exit({code})"
    assert main(sys.executable, "-c", script) == expected
    assert shown in capsys.readouterr().out


def test_without_pip_audit_the_reason_is_said(capsys, tmp_path):
    assert main(str(tmp_path / "pip-audit")) == 0
    assert "Not audited: pip-audit could not be installed" in capsys.readouterr().out


def test_packages_that_the_database_does_not_have_are_counted(capsys):
    script = "print('a  Dependency not found on PyPI and could not be audited: a (1.0)')"
    assert main(sys.executable, "-c", script) == 0
    count = CONSTRAINTS.read_text(encoding="utf-8").count("==")
    assert f"Not audited: 1 of {count} packages" in capsys.readouterr().out


def test_it_reads_every_pinned_version(capsys):
    assert main(sys.executable, "-c", "import sys; print(open(sys.argv[2]).read())") == 0
    assert CONSTRAINTS.read_text(encoding="utf-8") in capsys.readouterr().out


def test_a_workflow_runs_it_every_week():
    text = (ROOT / ".github/workflows/audit.yml").read_text(encoding="utf-8")
    workflow = yaml.load(text, Loader=yaml.BaseLoader)
    assert {"push", "pull_request", "schedule"} <= workflow["on"].keys()
    (job,) = workflow["jobs"].values()
    assert {"run": "make audit"} in job["steps"]
    assert "\naudit:\n" in (ROOT / "Makefile").read_text(encoding="utf-8")

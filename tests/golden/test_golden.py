"""The results of earlier versions are still reproduced: records, models, runs of experiments.

Never adapt the files to new code; `record.py` says how they are made.
"""

import json
import shutil

import pytest

from tests.golden import cases
from wima.runs.launch import Display as NoProgress, resume
from wima.runs.run import read_run

RUNS = json.loads((cases.HERE / "runs.json").read_text())
REMOVED = {"KEYWORD_ONLY collective 'gather'"}
PROCESSES = ("plain scaffold", "layers mime", "measures fedavg")


@pytest.fixture
def known():
    if cases.machine() not in RUNS:
        pytest.skip(f"no results from a machine like this: {cases.machine()}")
    return RUNS[cases.machine()]


@pytest.mark.parametrize("variant", cases.VARIANTS)
@pytest.mark.parametrize("algorithm", cases.ALGORITHMS)
def test_a_run_has_the_bytes_of_earlier_versions(algorithm, variant, known, tmp_path):
    assert (
        cases.run(algorithm, variant, "serial", tmp_path / "run") == known[f"{variant} {algorithm}"]
    )


@pytest.mark.parametrize("variant", ["layers", "faults", "measures"])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "mime"])
def test_so_has_the_reference(algorithm, variant, known, tmp_path):
    assert (
        cases.run(algorithm, variant, "reference", tmp_path / "run")
        == known[f"{variant} {algorithm}"]
    )


@pytest.mark.parametrize("case", PROCESSES)
def test_so_have_processes(case, known, tmp_path):
    variant, algorithm = case.split()
    assert cases.run(algorithm, variant, "processes", tmp_path / "run") == known[case]


@pytest.mark.lab
def test_experiments_have_the_same_runs_and_sheets():
    assert cases.sheets() == json.loads((cases.HERE / "sheets.json").read_text())


@pytest.mark.parametrize("name", cases.STOPPED)
def test_a_run_that_an_earlier_version_began_is_read_and_resumed(name, known, tmp_path, capsys):
    folder = tmp_path / name
    shutil.unpack_archive(cases.HERE / f"{name}.zip", folder)
    expected = (folder / "expected.jsonl").read_bytes()
    assert read_run(folder).t == 14
    assert read_run(folder).settings.run_id == cases.stopped_settings(name).run_id
    resume(folder, NoProgress)
    assert "Resuming after 12 of 20 rounds." in capsys.readouterr().out
    assert cases.with_earlier_epsilon((folder / "records.jsonl").read_bytes()) == expected


def test_no_public_function_has_lost_a_parameter():
    before = json.loads((cases.HERE / "signatures.json").read_text())
    now = cases.signatures()
    for name in before.keys() - {"Simulation", "Result"}:  # made by functions, not by users
        lost = [p for p in before[name] if p not in now[name] and p not in REMOVED]
        assert not lost, name

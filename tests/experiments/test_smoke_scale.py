"""Every experiment runs."""

import pytest

from tests.helpers.sweeps import played
from wima.experiments.plan import expand, experiments, scales
from wima.experiments.sheet import read_sheet
from wima.runs.run import read_run

# At this scale all settings have the same data, and all of them take minutes.
ONLY = {"tune": ["cifar10-0", "fedavgm", "fedprox"], "sota": ["cifar10-0", "shakespeare"]}
ONLY |= {"auto": ["digits-0"], "privacy": ["digits-0"]}


@pytest.mark.slow
def test_every_experiment_runs_at_the_smallest_scale(tmp_path, cli):
    folder, jobs = tmp_path / "runs" / "smoke", {}
    for name, experiment in experiments().items():
        given = (scales()["smoke"], [0], "", ONLY.get(name, []))
        jobs.update({job.name: job for job in expand(name, experiment, "smoke", *given)[1]})
    jobs.popitem()  # the last one is for the command
    played(jobs.values(), folder)  # the others in one process: it takes seconds to start another
    for name in experiments():
        only = ["--only", ",".join(ONLY[name])] if name in ONLY else []
        code, _, errors = cli("paper", name, "--scale", "smoke", "--jobs", "1", *only)
        assert code == 0, errors
        for cell in read_sheet(folder / f"{name}.sheet.json").cells:
            if name not in ONLY or (folder / cell.run).exists():
                assert set(cell.models.values()) <= set(read_run(folder / cell.run).models)

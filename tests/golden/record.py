"""Write the yardsticks: only with a version whose results are known to be right."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.golden import cases
from wima.core.signals import Interrupted
from wima.runs.launch import launch


def main() -> None:
    file = cases.HERE / "runs.json"
    runs = json.loads(file.read_text()) if file.exists() else {}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (algorithm, variant) in enumerate(cases.every_case()):
            place = Path(folder) / str(number)
            found[f"{variant} {algorithm}"] = cases.run(algorithm, variant, "serial", place)
    runs[cases.machine()] = found
    file.write_text(json.dumps(runs, indent=1) + "\n")
    if "--all" in sys.argv:
        for name, content in (("sheets", cases.sheets()), ("signatures", cases.signatures())):
            (cases.HERE / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
        with tempfile.TemporaryDirectory() as folder:
            for name in cases.STOPPED:
                stop(name, Path(folder))


def stop(name: str, folder: Path) -> None:
    """Keep a run folder that was interrupted, and what its records are at the end."""
    settings = cases.stopped_settings(name)
    launch(settings, folder / f"{name}-whole", cases.NoProgress, report=lambda line: None)
    with contextlib.suppress(Interrupted):
        launch(settings, folder / name, cases.Stop, report=lambda line: None)
    (folder / name / "expected.jsonl").write_bytes(
        (folder / f"{name}-whole" / "records.jsonl").read_bytes()
    )
    shutil.make_archive(str(cases.HERE / name), "zip", folder / name)


if __name__ == "__main__":
    main()

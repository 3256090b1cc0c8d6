"""What is compared: short runs of every algorithm, the runs of every experiment, signatures.

    python -m tests.golden.record

adds the results of the installed wima to the files in this folder.  Records and models depend on
the kind of processor and on torch, so `runs.json` has an entry for each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from wima.core.errors import RunError, UsageError
from wima.runs.launch import Display as NoProgress, launch
from wima.runs.settings import make_settings

HERE = Path(__file__).parent
ALGORITHMS = (
    "fedavg",
    "fedprox:mu=0.1",
    "scaffold",
    "scaffold:option=I",
    "feddyn",
    "adabest",
    "fedcm",
    "fedacg",
    "mime",
    "mimelite",
)
BASE: dict[str, Any] = {
    "data": "digits",
    "clients": 12,
    "rounds": 7,
    "clients_per_round": 4,
    "lr": 0.05,
    "batch_size": 20,
    "eval_last": 2,
    "eval_every": 3,
    "weight_decay": 1e-4,
    "checkpoint_every": 0,
    "checkpoint_minutes": 0.0,
    "averagers": ["wima:window=3", "wima:window=auto", "ema", "lawa:k=3:every=2", "swa:start=3"],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "server": {
        "server": "adam:lr=0.01",
        "stack_server": True,
        "schedule": "exponential:decay=0.9",
        "momentum": 0.5,
    },
    "layers": {"model": f"{HERE / 'own_net.py'}:Net", "last_batch": "short"},
    "faults": {"dropout": 0.3, "stragglers": 0.5, "exclude": True, "weighting": "uniform"},
    "privacy": {"privacy": "gaussian:clip=0.5:noise=0.7", "weighting": "uniform"},
    "measures": {
        "client_test": 0.2,
        "client_eval_every": 3,
        "calibration": True,
        "finetune": "sgd:steps=2",
    },
}


def machine() -> str:
    """What the bytes of a run depend on, besides its settings."""
    name = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields = {
            line.partition(":")[0].strip(): line.partition(":")[2].strip()
            for line in reversed(cpuinfo.read_text().splitlines())
        }
        name = f"{fields.get('model name', name)} family {fields.get('cpu family', '?')}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {capability}, torch {torch.__version__.partition('+')[0]}"


def settings_of(algorithm: str, variant: str, engine: str) -> Any:
    workers = {"workers": 2} if engine == "processes" else {}
    return make_settings(
        {**BASE, **VARIANTS[variant], "algorithm": algorithm, "engine": engine, **workers}
    )


def run(algorithm: str, variant: str, engine: str, folder: Path) -> dict[str, str]:
    """The checksums of a run's records and models, or the error that refuses it."""
    try:
        launch(
            settings_of(algorithm, variant, engine), folder, NoProgress, report=lambda line: None
        )
    except (UsageError, RunError) as error:
        return {"error": str(error)}
    models = hashlib.sha256()
    for file in sorted((folder / "models").iterdir()):
        models.update(file.name.encode() + file.read_bytes())
    records = hashlib.sha256(with_earlier_epsilon((folder / "records.jsonl").read_bytes()))
    return {"records": records.hexdigest()[:16], "models": models.hexdigest()[:16]}


def with_earlier_epsilon(records: bytes) -> bytes:
    """The records with the looser epsilon of earlier versions, so that all else is compared.

    For the private runs here: noise 0.7 and 4 of 12 clients, without replacement.  Theorem 27 of
    Wang, Balle and Kasiviswanathan 2019.
    """
    if b'"epsilon"' not in records:
        return records
    dp = pytest.importorskip("dp_accounting")
    round_ = dp.SampledWithoutReplacementDpEvent(12, 4, dp.GaussianDpEvent(0.7 / 2))
    one = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    one.compose(round_)

    def earlier(match: re.Match[bytes]) -> bytes:
        spent = int(match[2]) * one._rdp
        epsilon = float(dp.rdp.compute_epsilon(one._orders, spent, 1e-5)[0])
        return match[1] + repr(epsilon).encode()

    return re.sub(rb'("t": (\d+),.*"epsilon": )[^,]+', earlier, records)


def every_case() -> Iterator[tuple[str, str]]:
    for variant in VARIANTS:
        for algorithm in ALGORITHMS:
            yield algorithm, variant


def sheets() -> dict[str, dict[str, Any]]:
    """For every experiment and scale, a checksum of its sheet and the names of its runs."""
    from wima.experiments.plan import expand, experiments, scales

    found = {}
    for name in experiments():
        for scale in scales():
            sheet, jobs = expand(name, experiments()[name], scale, scales()[scale], [0, 1], "c")
            names = [job.name for job in jobs]
            text = json.dumps(
                sheet._asdict() if hasattr(sheet, "_asdict") else vars(sheet),
                default=lambda part: part._asdict(),
                sort_keys=True,
            )
            found[f"{name} {scale}"] = {
                "runs": len(names),
                "names": _checksum("\n".join(names)),
                "sheet": _checksum(text),
            }
    return found


STOPPED: dict[str, dict[str, Any]] = {  # run folders that were interrupted, kept as zip files
    "fedavg": {
        "algorithm": "fedavg",
        "server": "yogi:lr=0.01",
        "stragglers": 0.3,
        "averagers": ["wima:window=auto", "swa:start=8:cycle=2", "wima:window=8:buckets=2"],
    },
    "scaffold-files": {
        "algorithm": "scaffold",
        "window_store": "files",
        "client_memory_gb": 0.0,
        "store_dtype": "bfloat16",
    },
    "private": {
        "algorithm": "fedavg",
        "weighting": "uniform",
        "privacy": "gaussian:clip=0.5:noise=0.7:quantile=0.5",
    },
}
LONG: dict[str, Any] = {
    **BASE,
    "rounds": 20,
    "checkpoint_every": 6,
    "averagers": ["wima:window=3", "ema", "lawa:k=2:every=2", "wima:window=5:part=classifier"],
}


def stopped_settings(name: str) -> Any:
    return make_settings({**LONG, **STOPPED[name], "engine": "serial"})


class Stop(NoProgress):
    """Interrupts a run after 14 rounds."""

    def update(self, record: Any) -> None:
        if record.t == 14:
            raise KeyboardInterrupt


def signatures() -> dict[str, list[str]]:
    """The parameters of every public name that can be called."""
    import inspect

    import wima

    found = {}
    for name in sorted(wima.__all__):
        with contextlib.suppress(TypeError, ValueError):
            found[name] = [
                re.sub(" at 0x[0-9a-f]+", "", f"{p.kind.name} {p.name} {p.default!r}")
                for p in inspect.signature(getattr(wima, name)).parameters.values()
            ]
    return found


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

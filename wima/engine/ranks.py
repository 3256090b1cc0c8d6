"""Which rank of a distributed run this process is, according to torchrun or srun."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from wima.core.errors import UsageError, check

_COMMAND = (
    "engine 'distributed' needs torchrun or srun, and neither started this process. Run\n"
    "  torchrun --nproc-per-node 2 -m wima run ... engine=distributed\n"
    "or use engine 'processes', which starts its workers itself."
)
_TORCHRUN = {
    "rank": ("RANK",),
    "size": ("WORLD_SIZE",),
    "host": ("MASTER_ADDR",),
    "port": ("MASTER_PORT",),
    "local": ("LOCAL_RANK",),
}
_SRUN = {
    "rank": ("SLURM_PROCID",),
    "size": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    "host": ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"),
    "port": ("SLURM_JOB_ID", "SLURM_JOBID"),
    "local": ("SLURM_LOCALID",),
}
_PORTS = range(12_000, 32_000)  # for SLURM jobs; higher ports are assigned by the system


class Place(NamedTuple):
    """A rank, the number of ranks, and the address of rank 0."""

    rank: int
    size: int
    host: str
    port: int
    local: int = 0  # its rank on its machine


def place(environment: Mapping[str, str] = os.environ) -> Place:
    """The place of this process; torchrun's variables take precedence over SLURM's."""

    def found(names: Mapping[str, tuple[str, ...]], part: str) -> str | None:
        return next((environment[name] for name in names[part] if environment.get(name)), None)

    names = _TORCHRUN if found(_TORCHRUN, "rank") else _SRUN
    rank, size = found(names, "rank"), found(names, "size")
    if rank is None or size is None:
        raise UsageError(_COMMAND)
    host, port = found(_TORCHRUN, "host"), found(_TORCHRUN, "port")
    nodes, job = found(_SRUN, "host"), found(_SRUN, "port")
    host = host or (first_host(nodes) if nodes else None)
    check(host is not None, "MASTER_ADDR must name the machine of rank 0, but is not set.")
    check(bool(port or job), "MASTER_PORT must be a free port on rank 0's host, but is not set.")
    number = _number("MASTER_PORT", port) if port else _port_of(job or "")
    local = found(names, "local")
    here = Place(
        _number(names["rank"][0], rank),
        _number(names["size"][0], size),
        host or "",
        number,
        _number(names["local"][0], local) if local else 0,
    )
    check(here.rank < here.size, f"RANK must be less than WORLD_SIZE {here.size}, got {here.rank}.")
    return here


def first_host(nodes: str) -> str:
    """The first name in a SLURM node list: `n03` for `n[03-10,12],m1`."""
    found = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\])?([^,\[]*)", nodes)
    check(found is not None, f"Expected a SLURM node list, got {nodes!r}.")
    return "".join(part or "" for part in found.groups()) if found else ""


def _port_of(job: str) -> int:
    """A port that all ranks of a job can compute without communication."""
    return _PORTS[_number("SLURM_JOB_ID", job) % len(_PORTS)]


def _number(name: str, text: str) -> int:
    check(text.isdecimal(), f"{name} must be a whole number, got {text!r}.")
    return int(text)

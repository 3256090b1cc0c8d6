"""Set up a run: check its arguments and fill in defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any

from wima.algorithms.base import Algorithm
from wima.algorithms.fedavg import FedAvg
from wima.algorithms.server_opt import SGD, ServerOpt
from wima.averaging import Averager, named
from wima.core.errors import check, unknown
from wima.data.batches import LocalSGD
from wima.engine.base import Setup
from wima.engine.exams import FineTune
from wima.engine.faults import Faults
from wima.engine.make import MakeEngine
from wima.engine.options import RunOptions
from wima.engine.privacy import Gaussian
from wima.simulation.arguments import check_parts, check_server_rule, shown
from wima.simulation.cohorts import Cohorts, check_cohort_size, make_cohorts
from wima.simulation.examination import prepared
from wima.simulation.private import ledger
from wima.simulation.schedules import Constant, Schedule
from wima.simulation.simulation import Simulation
from wima.storage.segments import Storage
from wima.task.task import Task


def simulate(
    task: Task,
    algorithm: Algorithm | None = None,
    *,
    server_opt: ServerOpt | None = None,
    averagers: Averager | Sequence[Averager] | Mapping[str, Averager] = (),
    schedule: Schedule | None = None,
    cohorts: Cohorts | str | None = None,
    faults: Faults | None = None,
    privacy: Gaussian | None = None,
    finetune: FineTune | None = None,
    storage: Storage | None = None,
    make: MakeEngine | None = None,
    **options: Any,
) -> Simulation:
    """Set up a run and return the iterator that runs it.

    options: rounds, clients_per_round, lr and others, see `RunOptions`; batch_size, epochs and
    other options of local SGD, see `LocalSGD`.
    schedule: how lr changes over the rounds; see `wima.simulation.schedules`.
    cohorts: "uniform" (the default), "poisson", or a function (seed, t) -> the clients of round t.
    faults: clients that drop out, straggle or return nonsense; see `Faults`.
    privacy: clip the clients' updates and add noise to their sum; see `Gaussian`.
    finetune: let each client fine-tune the final models; see `FineTune`.
    make: a function that makes the engine.

    With engine "distributed", all ranks call this function; the iterators of ranks 1, 2, ... solve
    the problems that rank 0 sends and yield no records.

    Examples:
        >>> import torch, wima
        >>> x, y = torch.eye(4), torch.tensor([0, 1, 0, 1])
        >>> data = wima.FederatedData.from_arrays(x, y, clients=[0, 0, 1, 1])
        >>> task = wima.make_task(lambda: torch.nn.Linear(4, 2), data, test=(x, y))
        >>> run = wima.simulate(task, averagers=wima.WIMA(2), rounds=2, clients_per_round=1)
        >>> for record in run:
        ...     print(record.t, sorted(record.metrics))
        1 ['plain', 'wima2']
        2 ['plain', 'wima2']
    """
    run, sgd = sorted_out(options)
    check_parts(task, algorithm, server_opt, averagers, schedule, privacy, finetune)
    check_cohort_size(run.clients_per_round, task.data.num_clients)
    algorithm, server_opt = algorithm or FedAvg(), server_opt or SGD()
    check_server_rule(algorithm, server_opt, run.stack_server)
    schedule = schedule or Constant()
    schedule.factor(0, run.rounds)  # raises now if the schedule does not fit the run
    watched = {name: a.for_run(run.rounds) for name, a in named(averagers).items()}
    judged = any(averager.judges for averager in watched.values())
    cohorts = cohorts or "uniform"
    check(
        not (make and privacy),
        "privacy works only in the simulator. On Flower, wrap the strategy in one of Flower's "
        "strategies for differential privacy, and that in `averaged`.",
    )
    check(
        not (make and finetune),
        "finetune works only in the simulator: on Flower, training examples stay on their nodes.",
    )
    task = prepared(task, run, finetune)
    spent = ledger(privacy, task, algorithm, run, cohorts) if privacy else None
    setup = (task, algorithm, server_opt, sgd, run.weighting, run.seed, faults or Faults(), judged)
    return Simulation(
        Setup(*setup, spent.privacy if spent else None, run.clients_per_round),
        run,
        watched,
        schedule,
        make_cohorts(cohorts, task.data.num_clients, run.clients_per_round),
        storage or Storage(),
        make,
        spent,
        finetune,
    )


def sorted_out(options: dict[str, Any]) -> tuple[RunOptions, LocalSGD]:
    """The options of the run, and those of local SGD."""
    known = {kind: [field.name for field in fields(kind)] for kind in (RunOptions, LocalSGD)}
    for name in options:
        if not any(name in names for names in known.values()):
            own = list(signature(simulate).parameters)
            raise unknown("option", name, own)
    given = {kind: {n: options[n] for n in names if n in options} for kind, names in known.items()}
    return RunOptions(**given[RunOptions]), LocalSGD(**given[LocalSGD])


simulate.__signature__ = shown(simulate, RunOptions, LocalSGD)  # type: ignore[attr-defined]

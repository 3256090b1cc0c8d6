"""Builds a task and a simulation from settings, and checks that what grows with a run fits."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wima.algorithms.base import Algorithm
from wima.averaging import Averager, Last, named
from wima.core.errors import check, check_range
from wima.core.machine import memory_available
from wima.data.load import load
from wima.data.sets import REMARKS
from wima.runs.own_code import IN_PYTHON, OWN, is_own, kinds, own_data
from wima.runs.settings import Settings
from wima.simulation.clients import OVERHEAD
from wima.simulation.measures.base import objective
from wima.simulation.options import Faults, LocalSGD, RunOptions
from wima.simulation.simulate import Simulation, simulate
from wima.simulation.task import Task, make_task
from wima.storage.segments import Segments, Storage
from wima.storage.states import size

SPARSER = "checkpoint_every=0 checkpoint_minutes=0"
ARGUMENTS = {"server": "server_opt"}  # of `simulate`; the others are called like the setting


class Plan(NamedTuple):
    """The largest size of what grows with a run, in bytes."""

    model: int
    averages: int  # sums and other states of averagers
    window: int  # past models
    clients: int  # clients' states
    overhead: int = 0  # memory for each of these, wherever they are kept

    def in_words(self, settings: Settings) -> str:
        """The plan in words."""
        where = {"memory": "in memory", "files": "in files"}[settings.window_store]
        budget = settings.client_memory_gb
        limit = "in memory" if budget is None else f"{budget:g} GB in memory, the rest in files"
        parts = [f"model {gigabytes(self.model)}"]
        parts += [f"averages {gigabytes(self.averages)}"] if self.averages else []
        parts += [f"past models {gigabytes(self.window)} ({where})"] if self.window else []
        parts += [f"clients' state {gigabytes(self.clients)} ({limit})"] if self.clients else []
        return f"Memory: up to {', '.join(parts)}."


def make_plan(
    settings: Settings, task: Task, algorithm: Algorithm, averagers: Sequence[Averager]
) -> Plan:
    """The plan of a run."""
    d = task.layout.size if task.layout else len(task.init(settings.seed))
    w = torch.empty(d, device="meta")  # has a size but takes no memory
    row = (2 if settings.store_dtype == "bfloat16" else 4) * d
    visits = min(task.data.num_clients, settings.rounds * settings.clients_per_round)
    clients = visits * size(algorithm.client_init(w[: task.trained]))
    return Plan(
        model=4 * d,
        averages=sum(a.rule().memory(w, settings.rounds) for a in averagers),
        window=max(a.rule().history for a in [Last(), *averagers]) * row,
        clients=clients,
        overhead=OVERHEAD * visits if clients else 0,
    )


def client_bytes(settings: Settings) -> float:
    """How much of the clients' states is kept in memory."""
    budget = settings.client_memory_gb
    return float("inf") if budget is None else budget * 1e9


def check_plan(plan: Plan, settings: Settings, folder: Path) -> None:
    """Refuse past models and clients' states that do not fit; says which settings need less."""
    in_files, budget = settings.window_store == "files", client_bytes(settings)
    saves = bool(settings.checkpoint_every or settings.checkpoint_minutes)
    window, clients = plan.window * (saves or in_files), plan.clients * (saves or budget < inf)
    memory = 4 * plan.model + plan.averages + plan.window * (not in_files)
    memory += int(min(plan.clients, budget)) + plan.overhead
    advice = ["window_store=files"] if plan.window and not in_files else []
    advice += ["client_memory_gb=1"] if plan.clients and budget == inf else []
    smaller = ["a smaller window"] if plan.window else []
    smaller += ["store_dtype=bfloat16"] if plan.window and settings.store_dtype == "float32" else []
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if folder.parent.exists():  # a resumed run: its result must stay the same
        smaller = []
    usage = shutil.disk_usage(there)
    own = sum(file.stat().st_size for file in folder.glob("*"))  # it will be overwritten
    # A pseudo file system such as /proc reports a size of 0; writing there fails anyway.
    disk = usage.free + own if usage.total else inf
    for needed, free, where, words in (
        (memory, memory_available(), "of memory", [*advice, *smaller]),
        (window + clients, disk, f"on the disk of {folder}", [*smaller, SPARSER]),
    ):
        check(
            needed <= free,
            f"The run needs up to {gigabytes(needed)} {where}, but only {gigabytes(free)} is free. "
            f"Settings that need less: {', '.join(words) or 'a smaller model'}.",
        )


def gigabytes(count: float) -> str:
    """A human-readable number of bytes."""
    for unit, much in (("GB", 1e9), ("MB", 1e6)):
        if count >= much:
            return f"{count / much:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def build_task(settings: Settings) -> Task:
    """Load and split the data, and combine them with the model."""
    check(
        settings.data.name != OWN,
        "The data and model of this run are Python objects, which settings cannot recreate; "
        f"{IN_PYTHON} resumes it, and `wima.read_run(path, task)` reads its models.",
    )
    make = settings.model.call("model")
    name, options = settings.data.name, settings.data.parameters
    metric = options.pop("metric", "clean")
    how = settings.model_dump(include={"clients", "alpha", "split"}) | {"seed": settings.data_seed}
    bundle = own_data(name, how, options) if is_own(name) else load(name, **how, **options)
    example = torch.from_numpy(bundle.x_test[:1].copy())
    example = bundle.transform.evaluate(example) if bundle.transform else example
    shape = tuple(example.shape[1:])  # as the model sees it
    loss, metrics = objective(bundle.kind, metric)
    return make_task(
        partial(make, shape, bundle.classes),
        bundle.train,
        (bundle.x_test, bundle.y_test),
        loss=loss,
        metrics=metrics,
        transform=bundle.transform,
        eval_batch_size=settings.eval_batch_size,
        device=settings.device,
        test_clients=bundle.test_clients,
        client_test=settings.client_test,
        data_seed=settings.data_seed,
    )


def build(
    settings: Settings,
    folder: Path | None = None,
    report: Callable[[str], object] = lambda line: None,
    task: Task | None = None,
    **overrides: Any,
) -> Simulation:
    """A simulation that is ready to run.

    folder: for state that is kept in files.
    report: receives the plan, the engine that `auto` chose, and the privacy budget.
    task, overrides: replace what the settings name, as in `simulate`.
    """
    parts = dict(overrides)
    for setting in kinds():
        argument = ARGUMENTS.get(setting, setting)
        if setting != "model" and argument not in parts:
            parts[argument] = settings.make(setting)
    task, plan = task or build_task(settings), None
    if folder is not None:
        averagers = list(named(parts["averagers"]).values())
        plan = make_plan(settings, task, parts["algorithm"], averagers)
        check_plan(plan, settings, folder)
    if settings.client_memory_gb is not None:
        check_range("client_memory_gb", settings.client_memory_gb, least=0)
    store = None if folder is None else Segments(folder)
    options = {
        "faults": settings.part(Faults),
        "cohorts": settings.cohorts,
        "storage": Storage(
            store,
            mapped_window=store is not None and settings.window_store == "files",
            client_bytes=client_bytes(settings),
            dtype=None if settings.store_dtype == "float32" else torch.bfloat16,
        ),
        **asdict(settings.part(RunOptions)),
        **asdict(settings.part(LocalSGD)),
    }
    simulation = simulate(task, **{**options, **parts})
    if plan is not None:
        report(plan.in_words(settings))
    if settings.data.name in REMARKS:
        report(REMARKS[settings.data.name])
    if simulation.why:
        report(f"Engine: {simulation.engine}; {simulation.why}.")
    if simulation.accountant is not None:
        report(simulation.accountant.in_words(settings.rounds))
    return simulation

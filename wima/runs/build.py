"""Builds a task and a simulation from settings, and plans its memory and disk."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from wima.algorithms.base import Algorithm
from wima.averaging import Averager, Last, named
from wima.core.errors import check, check_range
from wima.core.machine import memory_available
from wima.data.load import load
from wima.data.sets import REMARKS
from wima.runs.folder import SNAPSHOTS
from wima.runs.own_code import IN_PYTHON, OWN, is_own, kinds, own_data
from wima.runs.settings import Settings
from wima.simulation.clients import OVERHEAD
from wima.simulation.measures.base import objective
from wima.simulation.options import Faults, LocalSGD, RunOptions
from wima.simulation.simulate import Simulation, simulate
from wima.simulation.task import Task, make_task
from wima.storage.ring import BLOCK
from wima.storage.segments import Segments, Storage
from wima.storage.states import size

ARGUMENTS = {"server": "server_opt"}  # of `simulate`; the others are called like the setting


class Plan(NamedTuple):
    """Upper bounds, in bytes."""

    model: int
    averages: int  # sums and other states of averagers
    window: int  # past models
    clients: int  # clients' states
    snapshots: int  # files with means of models
    memory: int  # the total in memory
    disk: int  # checkpoints, records, final models and snapshots

    def in_words(self, settings: Settings) -> str:
        """The plan in words."""
        where = {"memory": "in memory", "files": "in files"}[settings.window_store]
        budget = settings.client_memory_gb
        limit = "in memory" if budget is None else f"{budget:g} GB in memory, the rest in files"
        parts = [f"model {gigabytes(self.model)}"]
        parts += [f"averages {gigabytes(self.averages)}"] if self.averages else []
        parts += [f"past models {gigabytes(self.window)} ({where})"] if self.window else []
        if self.clients:
            parts.append(f"clients' state up to {gigabytes(self.clients)} ({limit})")
        needed = f"Memory: {', '.join(parts)}; {gigabytes(self.memory)} in total."
        share = f", of which snapshots {gigabytes(self.snapshots)}" if self.snapshots else ""
        return f"{needed} Disk: up to {gigabytes(self.disk)}{share}."


def make_plan(
    settings: Settings, task: Task, algorithm: Algorithm, averagers: Sequence[Averager]
) -> Plan:
    """The plan of a run."""
    d = task.layout.size if task.layout else len(task.init(settings.seed))
    w = torch.empty(d, device="meta")  # has a size but takes no memory
    trained, watched = w[: task.trained], [Last(), *averagers]
    model, row = 4 * d, (2 if settings.store_dtype == "bfloat16" else 4) * d
    averages = sum(a.rule().memory(w, settings.rounds) for a in averagers)
    window = max(a.rule().history for a in watched) * row
    visits = min(task.data.num_clients, settings.rounds * settings.clients_per_round)
    clients = visits * size(algorithm.client_init(trained))
    total = 8 * d if settings.snapshots else 0  # the sum for the next snapshot, in float64
    memory = 4 * model + averages + (window if settings.window_store == "memory" else 0)
    memory += (
        int(min(clients, client_bytes(settings)))
        + (OVERHEAD * visits if clients else 0)
        + 2 * total
    )

    per_round = 2 * (100 + 8 * settings.clients_per_round + 100 * len(watched)) + 50
    names = 200 * (1 + len(task.layout.slices) if task.layout else 2)  # of tensors, in each file
    count = settings.rounds // settings.snapshots if settings.snapshots else 0
    snapshots = count * (model + names)
    disk = settings.rounds * per_round + len(watched) * model + snapshots
    if settings.checkpoint_every or settings.checkpoint_minutes:
        states = size(algorithm.init(trained)) + 2 * model  # server optimizers have at most two
        disk += 3 * (model + states + averages + total)  # three while one is being written
        # Segments of past models and of clients are shared and removed late: at most four times.
        disk += 4 * window + 4 * clients + (3 * BLOCK * row if window else 0)
    else:
        disk += window if settings.window_store == "files" else 0
        disk += 2 * clients if settings.client_memory_gb is not None else 0
    return Plan(
        model=model,
        averages=averages,
        window=window,
        clients=clients,
        snapshots=snapshots,
        memory=memory,
        disk=disk,
    )


def client_bytes(settings: Settings) -> float:
    """How much of the clients' states is kept in memory."""
    budget = settings.client_memory_gb
    return float("inf") if budget is None else budget * 1e9


def check_plan(plan: Plan, settings: Settings, folder: Path) -> None:
    """Refuse a run that does not fit; the message lists settings that would reduce its size."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free, usage = memory_available(), shutil.disk_usage(there)
    # A pseudo file system such as /proc reports a size of 0; writing there fails anyway.
    own = _bytes_in(folder) + min(plan.snapshots, _bytes_in(folder.parent / SNAPSHOTS))
    disk = usage.free + own if usage.total else plan.disk
    advice, sparser = [], ["snapshots=0"] if plan.snapshots else []
    if plan.window and settings.window_store == "memory":
        advice.append("window_store=files")
    if plan.clients and settings.client_memory_gb is None:
        advice.append("client_memory_gb=1")
    smaller = ["a smaller window"] if plan.window else []
    smaller += ["store_dtype=bfloat16"] if plan.window and settings.store_dtype == "float32" else []
    if folder.parent.exists():  # a resumed run: its result must stay the same
        smaller = []
    check(
        plan.memory <= free,
        f"The run needs {gigabytes(plan.memory)} of memory, but only {gigabytes(free)} is free. "
        f"Settings that need less: {', '.join([*advice, *smaller]) or 'a smaller model'}.",
    )
    check(
        plan.disk <= disk,
        f"The run needs up to {gigabytes(plan.disk)} on the disk of {folder}, but only "
        f"{gigabytes(disk)} is free. Settings that need less: "
        f"{', '.join([*sparser, *smaller, 'checkpoint_every=0 checkpoint_minutes=0'])}.",
    )


def _bytes_in(folder: Path) -> int:
    """Space that the run itself already uses and will overwrite."""
    return sum(file.stat().st_size for file in folder.glob("*"))


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
        lambda: make(shape, bundle.classes),
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

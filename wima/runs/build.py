"""Builds a task and a simulation from settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from wima import algorithms, averaging, models
from wima.algorithms import server_opt
from wima.averaging import named
from wima.core.checks import check_range
from wima.core.errors import check
from wima.data.batches import LocalSGD
from wima.data.bundle import Bundle
from wima.data.load import load
from wima.engine import exams, privacy
from wima.engine.faults import Faults
from wima.engine.options import RunOptions
from wima.runs.names import IN_PYTHON, OWN, is_own, own_data
from wima.runs.plan import check_plan, make_plan
from wima.runs.settings import Settings
from wima.simulation import schedules
from wima.simulation.simulation import Simulation
from wima.simulation.start import simulate
from wima.storage.segments import Segments, Storage
from wima.task.objectives import objective
from wima.task.task import Task, make_task


def build_task(settings: Settings) -> Task:
    """Load and split the data, and combine them with the model."""
    check(
        settings.data.name != OWN,
        "The data and model of this run are Python objects, which settings cannot recreate; "
        f"{IN_PYTHON} resumes it, and `wima.read_run(path, task)` reads its models.",
    )
    make = settings.model.call("model", models.BY_NAME)
    options = settings.data.parameters
    metric = options.pop("metric", "clean")
    bundle = _load(settings, options)
    shape, classes = _shape(bundle), bundle.classes
    loss, metrics = objective(bundle.kind, metric)
    return make_task(
        lambda: make(shape, classes),
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


def _load(settings: Settings, options: dict[str, Any]) -> Bundle:
    """The named data set, or what a user's own function returns."""
    name, given = settings.data.name, settings.model_dump(include={"clients", "alpha", "split"})
    given["seed"] = settings.data_seed
    return own_data(name, given, options) if is_own(name) else load(name, **given, **options)


def _shape(bundle: Bundle) -> tuple[int, ...]:
    """The shape of an example as the model sees it."""
    x = torch.from_numpy(bundle.x_test[:1].copy())
    return tuple((bundle.transform.evaluate(x) if bundle.transform else x).shape[1:])


def storage(settings: Settings, folder: Path | None) -> Storage:
    """Where past models and clients' states are stored."""
    budget = settings.client_memory_gb
    if budget is not None:
        check_range("client_memory_gb", budget, least=0)
    store = None if folder is None else Segments(folder)
    return Storage(
        store,
        mapped_window=store is not None and settings.window_store == "files",
        client_bytes=float("inf") if budget is None else budget * 1e9,
        dtype=None if settings.store_dtype == "float32" else torch.bfloat16,
    )


def build(
    settings: Settings,
    folder: Path | None = None,
    report: Callable[[str], object] = lambda line: None,
    task: Task | None = None,
    **instead: Any,
) -> Simulation:
    """A simulation that is ready to run.

    folder: for state that is kept in files.
    report: receives the plan, the engine that `auto` chose, and the privacy budget.
    task, instead: replace what the settings name, as in `simulate`.
    """
    parts = _parts(settings, instead)
    task, plan = task or build_task(settings), None
    if folder is not None:
        averagers = list(named(parts["averagers"]).values())
        plan = make_plan(settings, task, parts["algorithm"], averagers)
        check_plan(plan, settings, folder)
    options = {
        "faults": settings.part(Faults),
        "cohorts": settings.cohorts,
        "privacy": settings.privacy and settings.privacy.make("privacy", privacy.BY_NAME),
        "finetune": settings.finetune and settings.finetune.make("fine-tuning", exams.BY_NAME),
        "storage": storage(settings, folder),
        **asdict(settings.part(RunOptions)),
        **asdict(settings.part(LocalSGD)),
    }
    simulation = simulate(task, **{**options, **parts, **instead})
    if plan is not None:
        report(plan.in_words(settings))
    if simulation.why:
        report(f"Engine: {simulation.engine}; {simulation.why}.")
    if simulation.ledger is not None:
        report(simulation.ledger.in_words(settings.rounds))
    return simulation


def _parts(settings: Settings, instead: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings name, or its replacement."""
    made: dict[str, Callable[[], Any]] = {
        "algorithm": lambda: settings.algorithm.make("algorithm", algorithms.BY_NAME),
        "server_opt": lambda: settings.server.make("server optimizer", server_opt.BY_NAME),
        "averagers": lambda: [c.make("averager", averaging.BY_NAME) for c in settings.averagers],
        "schedule": lambda: settings.schedule.make("schedule", schedules.BY_NAME),
    }
    return {n: instead[n] if n in instead else make() for n, make in made.items()}

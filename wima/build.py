"""Settings -> the things they name."""

from __future__ import annotations

import torch

from wima import algorithms, averaging, data, models, schedules, server_opt
from wima.config import Settings
from wima.objectives import objective
from wima.simulation import Simulation, simulate
from wima.task import Task, make_task


def build_task(settings: Settings) -> Task:
    """Load the data, split them, and join them with the model."""
    make = settings.model.call("model", models.BY_NAME)
    options = settings.data.parameters
    metric = options.pop("metric", "clean")
    bundle = data.load(
        settings.data.name,
        clients=settings.clients,
        alpha=settings.alpha,
        seed=settings.data_seed,
        split=settings.split,
        **options,
    )
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
    )


def _shape(bundle: data.Bundle) -> tuple[int, ...]:
    """The shape of an example as the model sees it."""
    x = torch.from_numpy(bundle.x_test[:1].copy())
    return tuple((bundle.transform.evaluate(x) if bundle.transform else x).shape[1:])


def build(settings: Settings) -> Simulation:
    """A simulation that is ready to run."""
    algorithm = settings.algorithm.make("algorithm", algorithms.BY_NAME)
    server = settings.server.make("server optimizer", server_opt.BY_NAME)
    averagers = [choice.make("averager", averaging.BY_NAME) for choice in settings.averagers]
    return simulate(
        build_task(settings),
        algorithm,
        server_opt=server,
        averagers=averagers,
        rounds=settings.rounds,
        clients_per_round=settings.clients_per_round,
        lr=settings.lr,
        schedule=settings.schedule.make("schedule", schedules.BY_NAME),
        stack_server=settings.stack_server,
        weighting=settings.weighting,
        seed=settings.seed,
        eval_every=settings.eval_every,
        eval_last=settings.eval_last,
        engine=settings.engine,
        workers=settings.workers,
        **settings.sgd,
    )

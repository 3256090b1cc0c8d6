"""Settings -> the things they name."""

from __future__ import annotations

from wima import algorithms, averaging, data, models, schedules, server_opt
from wima.config import Settings
from wima.errors import unknown
from wima.simulation import Simulation, simulate
from wima.task import Task, make_task


def build_task(settings: Settings) -> Task:
    """Load the data, split them, and join them with the model."""
    if settings.model not in models.BY_NAME:
        raise unknown("model", settings.model, models.BY_NAME)
    alpha = None if settings.alpha == "iid" else settings.alpha
    bundle = data.load(
        settings.data, clients=settings.clients, alpha=alpha, seed=settings.data_seed
    )
    make, shape, classes = models.BY_NAME[settings.model], bundle.x_test.shape[1:], bundle.classes
    return make_task(lambda: make(shape, classes), bundle.train, (bundle.x_test, bundle.y_test))


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

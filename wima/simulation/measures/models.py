"""What a round's record says about the models: metrics, clients, calibration, fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from wima.core.errors import UsageError, check
from wima.core.randomness import rng
from wima.core.statistics import summary
from wima.core.vector import Vector
from wima.simulation.engines.base import Engine
from wima.simulation.measures.calibration import calibration_error, reliability
from wima.simulation.measures.evaluation import Detail, Evaluation, Metrics
from wima.simulation.measures.finetune import Exam, FineTune
from wima.simulation.options import NOTHING, RunOptions
from wima.simulation.task import Task

Summaries: TypeAlias = dict[str, dict[str, Any]]  # by model


class Examined(NamedTuple):
    """Results by name of the model; empty if not requested."""

    metrics: dict[str, Metrics]
    clients: Mapping[str, Any] = NOTHING  # see `wima.core.statistics`
    calibration: Mapping[str, Any] = NOTHING  # see `reliability`
    finetuned: Mapping[str, Any] = NOTHING  # before and after


def prepared(task: Task, options: RunOptions, finetune: FineTune | None) -> Task:
    """The task with the clients to evaluate, if any; raises if they cannot be evaluated."""
    asked = bool(options.client_eval_every or finetune)
    if not (asked or options.calibration):
        return task
    evaluation = task.evaluate
    check(
        isinstance(evaluation, Evaluation),
        "client_eval_every, finetune and calibration need a task made by wima.make_task.",
    )
    assert isinstance(evaluation, Evaluation)
    if options.calibration:
        evaluation.piece(0, [task.init(options.seed)], Detail(calibration=True))  # raises early
    if not asked:
        return task
    _check_clients(task, evaluation)
    clients = evaluation.clients
    if len(clients) > options.client_sample:
        draw = rng("clients", options.seed)
        clients = draw.choice(clients, options.client_sample, replace=False)
    return task._replace(evaluate=evaluation.of_clients(clients))


def _check_clients(task: Task, evaluation: Evaluation) -> None:
    there, data = evaluation.clients, task.data
    check(
        len(there) > 0,
        "Clients cannot be evaluated: the data set has no test examples per client. Set "
        "client_test=0.2 to hold out a fifth of each client's examples.",
    )
    missing = data.num_clients - len(there)
    if missing:
        first = next(i for i in range(data.num_clients) if i >= len(there) or there[i] != i)
        name = "" if data.names is None else f" ({str(data.names[first])!r})"
        raise UsageError(
            f"Clients cannot be evaluated: {missing} of {data.num_clients} clients have no test "
            f"examples, the first is client {first}{name}. Set client_test=0.2 to hold out a fifth "
            "of each client's examples, or leave such clients out."
        )
    check(
        bool(evaluation.metrics),
        "Clients are compared by the task's first metric, but this task has no metrics.",
    )


def examine(engine: Engine, task: Task, models: Mapping[str, Vector], detail: Detail) -> Examined:
    """Evaluate models by name, in one pass over the examples if the task allows it."""
    evaluation = task.evaluate
    if not isinstance(evaluation, Evaluation):
        return Examined({name: evaluation(w) for name, w in models.items()})
    exam = Exam(range(evaluation.pieces(detail)), detail)
    answers = engine.examine(exam, list(models.values()))
    found = dict(zip(models, evaluation.combine(answers), strict=True))
    metrics = {name: one.metrics for name, one in found.items()}
    if detail.calibration:
        for name, one in found.items():
            metrics[name]["ece"] = calibration_error(one.bins)
    return Examined(
        metrics,
        summaries({name: one.clients for name, one in found.items()}) if detail.clients else {},
        {name: reliability(one.bins) for name, one in found.items() if one.bins},
    )


def finetuned(
    engine: Engine, task: Task, models: Mapping[str, Vector], how: FineTune, t: int
) -> dict[str, Summaries]:
    """The models' metric on each client's own examples, before and after fine-tuning."""
    evaluation = task.evaluate
    assert isinstance(evaluation, Evaluation)
    clients = evaluation.clients.tolist()
    answers = engine.examine(Exam(clients, finetune=how, t=t), list(models.values()))
    both = []
    for when in (0, 1):
        values = {
            name: {
                client: total / max(1, count)
                for client, answer in zip(clients, answers, strict=True)
                for total, count in [answer[model][when]]
            }
            for model, name in enumerate(models)
        }
        both.append(summaries(values))
    return {name: {"before": both[0][name], "after": both[1][name]} for name in models}


def summaries(values: Mapping[str, Mapping[int, float]]) -> Summaries:
    """Summarise model -> client -> value for each model; all but "plain" are compared with it."""
    found = {}
    for name, of_clients in values.items():
        plain = None if name == "plain" else [values["plain"][client] for client in of_clients]
        found[name] = summary(list(of_clients.values()), plain)
    return found

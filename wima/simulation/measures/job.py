"""What is measured in a run, and when: any process can answer a job, piece by piece, in JSON."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from wima.core.errors import UsageError, check
from wima.core.randomness import rng
from wima.core.vector import Vector
from wima.simulation.local import Solver, located
from wima.simulation.measures.base import Better, Entries, Evaluation, Measure
from wima.simulation.measures.calibration import Calibration
from wima.simulation.measures.clients import Clients, check_clients
from wima.simulation.measures.finetune import FineTune
from wima.simulation.options import RunOptions
from wima.simulation.task import Task


class EvaluationJob(NamedTuple):
    """What to compute, and for which pieces: batches of examples, or clients that fine-tune."""

    pieces: Sequence[int]
    measures: Sequence[str] = ()  # names in `Evaluation.measures`
    finetune: FineTune | None = None
    t: int = 0  # completed rounds

    def answer(self, solver: Solver, piece: int, models: Sequence[Vector]) -> list[Any]:
        """The answer for one piece, for each model."""
        if self.finetune is not None:
            return [self.finetune.part(solver, piece, w, self.t) for w in models]
        evaluation = solver.task.evaluate
        assert isinstance(evaluation, Evaluation)
        return evaluation.piece(piece, models, self.measures)

    def fields(self) -> dict[str, Any]:
        """The job without its pieces, as JSON for another process."""
        tuning = self.finetune and asdict(self.finetune)
        return {"measures": list(self.measures), "finetune": tuning, "t": self.t}


def job_of(fields: Mapping[str, Any]) -> EvaluationJob:
    """The inverse of `EvaluationJob.fields`."""
    tuning = fields["finetune"] and FineTune(**fields["finetune"])
    return EvaluationJob((), fields["measures"], tuning, fields["t"])


class Measures:
    """All measures of a run, in the order in which they are recorded."""

    def __init__(
        self, task: Task, options: RunOptions, own: Sequence[Measure], finetune: FineTune | None
    ) -> None:
        """Raises if something cannot be measured.  own: the user's measures."""
        self.task, self.options, self.finetune = task, options, finetune
        evaluation, wanted = task.evaluate, bool(options.client_eval_every or finetune)
        if not (wanted or options.calibration or own):
            return
        if not isinstance(evaluation, Evaluation):
            raise UsageError(
                "client_eval_every, finetune, calibration and measures need a task made by "
                "wima.make_task."
            )
        added: dict[str, Measure] = {}
        for measure in own:
            name = type(measure).__name__
            check(name not in added, f"measures has two objects of the class {name}.")
            check(
                bool(measure.better),
                f"The measure {name} must say which of its values are better, for example "
                f'better = {{"{name.lower()}": "higher"}}.',
            )
            taken = {n for m in (evaluation.metrics, *added.values()) for n in m.better}
            twice = taken & measure.better.keys()
            check(not twice, f"{name} has the name of another metric: {', '.join(sorted(twice))}.")
            added[name] = measure
        if options.client_eval_every:
            added["clients"] = Clients(evaluation.leading)
        if options.calibration:
            added["calibration"] = Calibration(evaluation.leading)
        evaluation = evaluation.changed(measures={**evaluation.measures, **added})
        if wanted:
            check_clients(evaluation.clients, task.data, len(evaluation.metrics.functions) > 1)
            if len(evaluation.clients) > options.client_sample:
                draw = rng("clients", options.seed)
                drawn = draw.choice(evaluation.clients, options.client_sample, replace=False)
                evaluation = evaluation.of_clients(drawn)
        self.task = task._replace(evaluate=evaluation)
        # Raise now, not after the first rounds, if a measure does not fit the model.
        for name in added.keys() - {"clients"}:
            try:
                evaluation.piece(0, [task.init(options.seed)], [name])
            except UsageError:
                raise
            except Exception as error:
                raise UsageError(
                    f"The measure {name} failed on the first batch of test examples: "
                    f"{type(error).__name__}: {error}"
                ) from error

    @property
    def better(self) -> dict[str, Better]:
        """Metric -> which of its values are better."""
        evaluation = self.task.evaluate
        measures = evaluation.measures.values() if isinstance(evaluation, Evaluation) else ()
        return {name: better for measure in measures for name, better in measure.better.items()}

    def due(self, t: int) -> list[str]:
        """The measures of the models after t rounds."""
        evaluation = self.task.evaluate
        if not isinstance(evaluation, Evaluation):
            return ["metrics"] if self.options.evaluates(t) else []
        return [n for n, measure in evaluation.measures.items() if measure.due(t, self.options)]

    def after(
        self,
        t: int,
        answer: Callable[[EvaluationJob, list[Vector]], list[Any]],
        current: Callable[[], Mapping[str, Vector]],
    ) -> Entries:
        """What the record of round t says about the current models; {} if nothing is due.

        answer: an engine's method, which answers all pieces in order.
        """
        evaluation, due = self.task.evaluate, self.due(t)
        finetune = self.finetune if t == self.options.rounds else None
        if not due and finetune is None:
            return {}
        models = current()
        vectors = list(models.values())
        if not isinstance(evaluation, Evaluation):
            return {"metrics": {name: evaluation(w) for name, w in models.items()}}
        entries: Entries = {}
        job = EvaluationJob(range(evaluation.pieces(due)), due)
        pieces = answer(job, vectors) if due else []
        for name in due:
            measure = evaluation.measures[name]
            with located(t, f"measure {name}"):
                values = {
                    model: measure.combine([piece[j][name] for piece in pieces if name in piece[j]])
                    for j, model in enumerate(models)
                }
                added = measure.entries(values)
            for key, by_model in added.items():
                kept = entries.setdefault(key, {})
                for model, value in by_model.items():
                    kept[model] = {**kept[model], **value} if model in kept else value
        if finetune is not None:
            clients = evaluation.clients.tolist()
            parts = answer(EvaluationJob(clients, finetune=finetune, t=t), vectors)
            entries |= finetune.entries(clients, list(models), parts)
        return entries

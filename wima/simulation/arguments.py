"""Checks of the arguments of `simulate`, and the signature that `help` shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Signature, signature
from typing import Any

from wima import algorithms, averaging
from wima.algorithms.base import Algorithm
from wima.algorithms.server_opt import BY_NAME as SERVERS, SGD, Momentum, ServerOpt
from wima.averaging.base import Averager
from wima.core.errors import check
from wima.engine.exams import BY_NAME as FINE_TUNING, FineTune
from wima.engine.privacy import BY_NAME as PRIVACY, Gaussian
from wima.simulation import schedules
from wima.task.task import Task

Registry = Mapping[str, type[Any]]


def check_parts(
    task: Any,
    algorithm: Any = None,
    server_opt: Any = None,
    averagers: Any = (),
    schedule: Any = None,
    privacy: Any = None,
    finetune: Any = None,
) -> None:
    """Raise `UsageError` for objects of the wrong kind and say what to write; None: the default."""
    check(
        isinstance(task, Task),
        f"task must be made by wima.make_task(model, data, test), got {task!r:.80}; to run a "
        "preset, use `wima run`.",
    )
    if algorithm is not None:
        fits = isinstance(algorithm, Algorithm)
        _check("algorithm", fits, algorithm, algorithms.BY_NAME)
    for averager in _listed(averagers):
        fits = isinstance(averager, Averager)
        _check("averagers", fits, averager, averaging.BY_NAME)
    if server_opt is not None:
        _check("server_opt", _has(server_opt, "init", "update"), server_opt, SERVERS)
    if schedule is not None:
        _check("schedule", _has(schedule, "factor"), schedule, schedules.BY_NAME)
    if privacy is not None:
        _check("privacy", isinstance(privacy, Gaussian), privacy, PRIVACY)
    if finetune is not None:
        _check("finetune", isinstance(finetune, FineTune), finetune, FINE_TUNING)


def check_server_rule(algorithm: Algorithm, server_opt: ServerOpt, stack: bool) -> None:
    """FedDyn, AdaBest and FedACG have their own server step; adding an optimizer is a mistake."""
    name = type(algorithm).__name__
    check(
        stack or not algorithm.own_server_rule or server_opt in (SGD(), Momentum(momentum=0)),
        f"{name} has its own server rule, so server must be SGD with lr 1 and no momentum, "
        f"got {server_opt}; set stack_server to apply it to {name}'s pseudo-gradient anyway.",
    )


def shown(function: Callable[..., Any], *kinds: Any) -> Signature:
    """The function's signature with these options instead of its last parameter, for `help`."""
    *own, _ = signature(function).parameters.values()
    names = [p.name for p in own]
    more = [p for kind in kinds for p in signature(kind).parameters.values()]
    return Signature([*own, *(p for p in more if p.name not in names)])


def _listed(averagers: Any) -> Iterable[Any]:
    if isinstance(averagers, Mapping):
        return averagers.values()
    one = isinstance(averagers, str) or not isinstance(averagers, Iterable)
    return [averagers] if one else averagers


def _has(given: Any, *methods: str) -> bool:
    methods_there = all(callable(getattr(given, method, None)) for method in methods)
    return methods_there and not isinstance(given, type)


def _check(argument: str, fits: bool, given: Any, registry: Registry) -> None:
    check(fits, f"{argument} cannot be {given!r:.80}; give {_instead(given, registry)}.")


def _instead(given: Any, registry: Registry) -> str:
    """What to write instead of a class, a name with hyper-parameters, or anything else."""
    if isinstance(given, type) and given in registry.values():
        return f"wima.{given.__name__}()"
    name, *pairs = given.split(":") if isinstance(given, str) else [""]
    if name in registry:
        return f"wima.{registry[name].__name__}({', '.join(pairs)})"
    return f"an object such as wima.{next(iter(registry.values())).__name__}()"

"""The registries in which choices in settings are looked up."""

from __future__ import annotations

from typing import Any

from wima import algorithms, averaging, models
from wima.algorithms import server_opt
from wima.data.sets import check_name
from wima.engine import exams, privacy
from wima.runs.names import is_own, load
from wima.simulation import schedules

KINDS: dict[str, tuple[str, Any]] = {  # setting -> what it is, and the module with its registry
    "algorithm": ("algorithm", algorithms),
    "server": ("server optimizer", server_opt),
    "schedule": ("schedule", schedules),
    "averagers": ("averager", averaging),
    "privacy": ("privacy", privacy),
    "finetune": ("fine-tuning", exams),
}


def check_choice(setting: str, choice: Any) -> None:
    """Raise `UsageError` unless the choice exists and accepts its hyper-parameters."""
    if setting == "data":
        load("data", choice.name) if is_own(choice.name) else check_name(choice.name)
    elif setting == "model":  # needs the shape of examples, so it is not built here
        choice.call("model", models.BY_NAME)
    elif choice is not None:
        kind, module = KINDS[setting]
        choice.make(kind, module.BY_NAME)

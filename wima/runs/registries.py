"""Where the choices in settings are looked up."""

from __future__ import annotations

from typing import Any

from wima import algorithms, averaging, models
from wima.algorithms import server_opt
from wima.data.sets import check_name
from wima.engine import privacy
from wima.runs.names import is_own, load
from wima.simulation import schedules

KINDS: dict[str, tuple[str, Any]] = {  # setting -> what it is, and the module with its registry
    "algorithm": ("algorithm", algorithms),
    "server": ("server optimizer", server_opt),
    "schedule": ("schedule", schedules),
    "averagers": ("averager", averaging),
    "model": ("model", models),
    "privacy": ("privacy", privacy),
}


def check_choice(setting: str, choice: Any) -> None:
    """Raise `UsageError` unless there is what a choice names, with such hyper-parameters."""
    if setting == "data":
        if is_own(choice.name):
            load("data", choice.name)
        else:
            check_name(choice.name)
        return
    kind, module = KINDS[setting]
    made = choice.call(kind, module.BY_NAME)
    if setting != "model":  # a model is made for examples of some shape
        made()

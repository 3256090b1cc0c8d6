"""How a run is computed over Flower's grid; what it computes is in the settings of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from wima.core.checks import check_count, check_range, check_rate, check_switch
from wima.core.errors import check, unknown
from wima.runs.identity import own_names
from wima.runs.settings import Settings, load_settings


@dataclass(frozen=True, kw_only=True)
class Options:
    """When to wait for nodes, and which of their updates to take.

    start_nodes: connected nodes that the first round waits for; 0: one for every client.
    min_nodes: connected nodes that every round waits for.
    wait_seconds: how long it waits for them before the run fails.
    round_seconds: how long a round waits for answers; who is later is left out of the round.
    robust: leave out updates that make no sense, and say so; else such an update ends the run.
    largest_norm: an update makes no sense if it is so many times longer than those of the others.
    most_examples: a client that claims more examples counts with this many; 0: with as many as it
    has in the data set of the settings.

    Examples:
        >>> from wima.flower import Options
        >>> options = Options(min_nodes=5, round_seconds=60.0)
        >>> options.robust
        True
    """

    start_nodes: int = 0
    min_nodes: int = 1
    wait_seconds: float = 600.0
    round_seconds: float = 600.0
    robust: bool = True
    largest_norm: float = 1000.0
    most_examples: int = 0

    def __post_init__(self) -> None:
        check_count("start-nodes", self.start_nodes, least=0)
        check_count("min-nodes", self.min_nodes)
        check_rate("wait-seconds", self.wait_seconds)
        check_rate("round-seconds", self.round_seconds)
        check_switch("robust", self.robust)
        check_range("largest-norm", self.largest_norm, above=1)
        check_count("most-examples", self.most_examples, least=0)


class Order(NamedTuple):
    """What `flwr run` asks for."""

    settings: Settings
    out: Path | None  # the run folder
    options: Options


RUN_KEYS = ("settings", "overrides", "out")


def read_order(config: Mapping[str, Any]) -> Order:
    """An app's run config, `[tool.flwr.app.config]` of its pyproject.toml.

    settings: a preset or the path of a .toml file; overrides: key=value texts with spaces between;
    out: the run folder; and the options with dashes, as in min-nodes.
    """
    names = {field.name.replace("_", "-"): field.name for field in fields(Options)}
    for key in config:
        if key not in RUN_KEYS and key not in names:
            raise unknown("key of the run config", key, [*RUN_KEYS, *names])
    for key in RUN_KEYS:
        given = config.get(key, "")
        check(isinstance(given, str), f"{key} in the run config must be a text, got {given!r}.")
    overrides = str(config.get("overrides", "")).split()
    settings = load_settings(str(config.get("settings") or "digits"), overrides)
    out = config.get("out")
    given = {names[key]: value for key, value in config.items() if key in names}
    return Order(settings, Path(str(out)) if out else None, Options(**given))


def check_known(settings: Settings) -> None:
    """Nodes import no code that a server names, and a server names none."""
    own = own_names(settings)
    check(
        not own,
        f"{', '.join(own)} is code of your own, which nodes of Flower do not import; use "
        "`wima run`, or add it to the package.",
    )

"""How a run is executed over Flower's grid; what it computes is in its settings."""

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
    """How long to wait for nodes, and which of their updates to accept.

    start_nodes: connected nodes that the first round waits for; 0: one per client.
    min_nodes: connected nodes that every round waits for.
    wait_seconds: how long to wait for them before the run fails.
    round_seconds: how long a round waits for replies; later ones are left out of the round.
    robust: leave out invalid updates and log a warning; if false, an invalid update ends the run.
    largest_norm: an update is invalid if its norm is more than this many times the median.
    most_examples: the largest number of examples that a client counts with; 0: its number in the
    data set of the settings.

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
    """What `flwr run` requests."""

    settings: Settings
    out: Path | None  # the run folder
    options: Options


RUN_KEYS = ("settings", "overrides", "out")


def read_order(config: Mapping[str, Any]) -> Order:
    """Read an app's run config, `[tool.flwr.app.config]` of its pyproject.toml.

    settings: a preset or the path of a .toml file; overrides: key=value pairs separated by spaces;
    out: the run folder; and the options, spelt with dashes, as in min-nodes.
    """
    names = {field.name.replace("_", "-"): field.name for field in fields(Options)}
    for key in config:
        if key not in RUN_KEYS and key not in names:
            raise unknown("key of the run config", key, [*RUN_KEYS, *names])
    for key in RUN_KEYS:
        given = config.get(key, "")
        check(isinstance(given, str), f"{key} in the run config must be a string, got {given!r}.")
    overrides = str(config.get("overrides", "")).split()
    settings = load_settings(str(config.get("settings") or "digits"), overrides)
    out = config.get("out")
    given = {names[key]: value for key, value in config.items() if key in names}
    return Order(settings, Path(str(out)) if out else None, Options(**given))


def check_known(settings: Settings) -> None:
    """Raise if the settings name code outside the package: nodes never import such code."""
    own = own_names(settings)
    check(
        not own,
        f"{', '.join(own)}: Flower nodes do not import your own code; use `wima run`, or add it to "
        "the package.",
    )

"""Error messages for wrong settings: what was expected, what was given, what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from wima.core.errors import unknown

# Setting -> what other programs call it; only unambiguous names.
WORDS = {
    "lr": "learning_rate learningrate client_lr local_lr eta step_size",
    "rounds": "num_rounds n_rounds global_rounds communication_rounds comm_rounds",
    "clients": "num_clients n_clients total_clients",
    "clients_per_round": "cohort cohort_size sampled_clients participants num_clients_per_round",
    "batch_size": "batch bs batchsize local_batch_size",
    "epochs": "local_epochs epochs_local num_epochs n_epochs",
    "steps": "local_steps num_steps",
    "weight_decay": "wd l2",
    "clip": "clip_norm grad_clip max_grad_norm",
    "data": "dataset data_set",
    "model": "net network arch architecture",
    "algorithm": "algo method strategy aggregation",
    "algorithm.mu": "mu proximal_mu",
    "server": "optimizer optim server_opt server_optimizer",
    "server.lr": "server_lr server_learning_rate global_lr",
    "server.momentum": "server_momentum",
    "averagers": "averager average averages averaging",
    "window": "window_size windows w",
    "schedule": "scheduler lr_schedule lr_scheduler",
    "alpha": "dirichlet dirichlet_alpha concentration",
    "split": "partition split_file",
    "seed": "random_seed rng_seed",
    "device": "cuda gpu",
    "workers": "num_workers n_workers processes",
    "eval_every": "eval_freq evaluate_every test_every",
    "trackers": "tracker logger",
    "--out": "out output out_dir output_dir folder",
}
MEANT = {word: name for name, words in WORDS.items() for word in words.split()}
EXPECTED = {  # pydantic's kind of error -> what is expected
    "int_type": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a string",
    "model_type": "a name, with hyper-parameters after colons, such as fedprox:mu=0.1",
    "missing": "a name with hyper-parameters",
}


def explain(items: Iterable[Mapping[str, Any]], known: Iterable[str]) -> list[str]:
    """Pydantic's errors as sentences, one per wrong value.  known: all settings."""
    names, expected = list(known), dict[tuple[str, str], list[str]]()
    for item in items:
        given = item["input"]
        where = str(item["loc"][0]) if item["loc"] else "settings"
        said = item["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        wanted = EXPECTED.get(item["type"], said)
        if item["type"] == "extra_forbidden":
            sentence, wanted = str(unknown("setting", where, names, MEANT)), ""
        elif item["type"] == "value_error":
            sentence, wanted = f"{where}: {said}", ""
        elif item["type"] == "model_type" and isinstance(given, list):
            sentence, wanted = _listed(where, given), ""
        else:
            sentence = f"got {given!r}."
        expected.setdefault((where, sentence), []).append(wanted)
    return [
        f"{where} must be {' or '.join(wanted)}, {sentence}" if all(wanted) else sentence
        for (where, sentence), wanted in expected.items()
    ]


def _listed(where: str, given: list[Any]) -> str:
    """The error for a list instead of a choice: commas instead of colons, or several names."""
    if all("=" in str(part) for part in given[1:]):
        instead = ":".join(map(str, given))
        return f"{where} expects hyper-parameters after colons: write {where}={instead}."
    several = ",".join(map(str, given))
    return (
        f"{where} expects one name, got {several}; "
        f"`wima sweep` runs several, with --grid {where}={several}."
    )


def as_setting(option: str, value: str | None, known: Iterable[str]) -> str | None:
    """What to write instead of an option such as --rounds, if it is a setting."""
    name = option.lstrip("-").replace("-", "_").lower()
    name = MEANT.get(name, name)
    if name.partition(".")[0] not in known:
        return None
    instead = f"{name}=VALUE" if value is None else f"{name}={value}"
    return f"Settings are given as name=value: write {instead} instead of {option}."

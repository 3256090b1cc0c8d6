"""Error messages for wrong settings: what was expected, what was given, what to write instead."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

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


def first_mistake(error: ValidationError) -> str:
    """Where pydantic's first error is, and what is wrong there."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    return f"{where}: {message}" if where else message


def explain(errors: Iterable[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """Pydantic's errors as sentences, one per wrong value.  names: of all settings."""
    names, sentences = list(names), dict[tuple[str, str], list[str]]()
    for error in errors:
        value = error["input"]
        setting = str(error["loc"][0]) if error["loc"] else "settings"
        message = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        expected = ""
        if error["type"] == "extra_forbidden":
            sentence = str(unknown("setting", setting, names, MEANT))
        elif error["type"] == "value_error":
            sentence = f"{setting}: {message}"
        elif error["type"] == "model_type" and isinstance(value, list):
            sentence = _list_for_choice(setting, value)
        else:
            sentence, expected = f"got {value!r}.", EXPECTED.get(error["type"], message)
        sentences.setdefault((setting, sentence), []).append(expected)
    return [
        f"{setting} must be {' or '.join(expected)}, {sentence}" if all(expected) else sentence
        for (setting, sentence), expected in sentences.items()
    ]


def _list_for_choice(setting: str, parts: list[Any]) -> str:
    """The error for a list instead of a choice: commas instead of colons, or several names."""
    if all("=" in str(part) for part in parts[1:]):
        choice = ":".join(map(str, parts))
        return f"{setting} expects hyper-parameters after colons: write {setting}={choice}."
    several = ",".join(map(str, parts))
    return (
        f"{setting} expects one name, got {several}; "
        f"`wima sweep` runs several, with --grid {setting}={several}."
    )


def as_setting(option: str, value: str | None, names: Iterable[str]) -> str | None:
    """What to write instead of an option such as --rounds, if it is one of the settings' names."""
    name = option.lstrip("-").replace("-", "_").lower()
    name = MEANT.get(name, name)
    if name.partition(".")[0] not in names:
        return None
    setting = f"{name}=VALUE" if value is None else f"{name}={value}"
    return f"Settings are given as name=value: write {setting} instead of {option}."

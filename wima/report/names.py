"""What runs, methods and models are called: short, never the same twice, or as papers print it."""

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from wima.core.errors import check, unknown
from wima.experiments.plan import methods, settings
from wima.report.inputs import Source
from wima.runs.own_code import is_own, label, split
from wima.runs.settings import CHOICES, NOT_IN_RESULTS, Settings, as_choice

MODEL = re.compile(r"(wima|ema|power-ema|lawa|swa)(?:-?(auto|[\d.x]+))?((?:-[\w.]+)*)")
LIMIT = 60  # characters of a row's name
METHOD = ("algorithm", "server")
USUAL = ("fedavg", "sgd")  # the default baseline
Facts = dict[str, str]  # settings as text


@cache
def _known() -> dict[str, str]:
    """Algorithms and data sets: name in settings -> name in papers."""
    names = {setting.preset: setting.label.split(" α")[0] for setting in settings().values()}
    for method in methods().values():
        names.setdefault(as_choice(method.set["algorithm"]).name, method.label.split()[0])
    return names


def proper(text: str) -> str:
    """`algorithm=fedavg, lr=0.1` as `FedAvg, lr = 0.1`; `wima50` as `WIMA, W = 50`."""
    text = re.sub(r"\balgorithm=", "", text)
    text = re.sub(r"(?<=\w):(?=\w+=)", ", ", text)
    text = re.sub(r"(?<![=\s])=(?![=\s])", " = ", text)
    return re.sub(r"[\w.-]+", lambda word: _known().get(word[0], _model(word[0])), text)


def _model(word: str) -> str:
    parts = MODEL.fullmatch(word)
    if parts is None:
        return word
    kind, size, rest = parts.groups()
    sized = f", W = {size}" if kind == "wima" else f" {size}"
    named = {None: "", "auto": ", auto"}.get(size, sized)
    return kind.upper().replace("POWER-", "power ") + named + rest.replace("-", ", ")


def grouped(runs: Iterable[Source], apart: Collection[str]) -> list[tuple[Facts, list[Source]]]:
    """Runs with the same settings, except for those in `apart`; what is not set is `None`.

    Of runs with the same settings and seed, the one that got furthest comes first.
    """
    groups: dict[tuple[tuple[str, str], ...], list[Source]] = {}
    for run in sorted(runs, key=lambda run: (run.state != "done", -run.done, str(run.path))):
        facts = []
        for name in (name for name in type(run.settings).model_fields if name not in apart):
            value = getattr(run.settings, name)
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            facts.append((name, text))
        groups.setdefault(tuple(facts), []).append(run)
    return [(dict(facts), own) for facts, own in groups.items()]


def group_names(groups: Sequence[Facts]) -> dict[str, str]:
    """A unique name for each group: algorithm and data, and what else distinguishes it.

    The keys have at most LIMIT characters; the values have everything that differs.
    """
    firsts, alike = [], dict[str, list[Facts]]()
    for group in groups:
        data = group["data"]
        on = Path(data).stem if data.endswith(".npz") else data
        firsts.append(f"{group['algorithm']} on {on}")
        alike.setdefault(firsts[-1], []).append(group)
    keys = {first: _distinguishing(own) for first, own in alike.items()}
    names: dict[str, str] = {}
    taken = Counter[str]()
    for group, first in zip(groups, firsts, strict=True):
        whole = ", ".join([first, *(f"{k}={group[k]}" for k in keys[first] if k in group)])
        short = whole
        if len(whole) > LIMIT:
            cut = whole[: LIMIT - 1]
            short = f"{cut[: cut.rfind(', ')] if ', ' in cut else cut} …"
        taken[short] += 1
        names[short if taken[short] == 1 else f"{short} ({taken[short]})"] = whole
    return names


def _distinguishing(groups: Sequence[Facts]) -> list[str]:
    """The settings in which these groups differ, those with the most distinct values first."""

    def kinds(names: Sequence[str]) -> int:
        return len({tuple(group.get(name) for name in names) for group in groups})

    known = dict.fromkeys(name for group in groups for name in group)
    varied = [name for name in known if name != "averagers" and kinds([name]) > 1]
    varied.sort(key=lambda name: -kinds([name]))
    if kinds(varied) < len(groups):  # averagers only if needed: headings show them
        varied.append("averagers")
    needed: list[str] = []
    for name in varied:
        needed += [name] if kinds([*needed, name]) > kinds(needed) else []
    return [*needed, *(name for name in varied if name not in needed)]


class Method(NamedTuple):
    """Runs with the same settings, except for the seed and the averages."""

    name: str
    facts: Facts  # the settings that they share
    runs: list[Source]  # the one that got furthest first


def methods_of(runs: Sequence[Source], by: Sequence[str] = ()) -> tuple[list[Method], list[str]]:
    """The methods, plain FedAvg first, and the settings that name them.

    These are `by`, if given; else algorithm and server; if those do not vary, all that do.
    """
    groups = grouped(runs, {"seed", "averagers", *NOT_IN_RESULTS})  # averages never affect training
    facts = [own for own, _ in groups]
    varied = [key for key in facts[0] if len({own[key] for own in facts}) > 1]
    data = ", ".join(sorted({own["data"] for own in facts}))
    same = "data" not in varied
    check(same, f"The runs are on different data: {data}. Use runs on one data set.")
    for key in by:
        if key not in facts[0]:
            raise unknown("setting for --by", key, facts[0])
    usual = [*METHOD] if {*METHOD} & {*varied} or not varied else varied
    chosen = list(by) or usual
    names = _method_names(facts, chosen)
    made = [Method(n, own, runs) for n, (own, runs) in zip(names, groups, strict=True)]

    def usual_first(method: Method) -> tuple[int, list[str | float]]:
        """Plain FedAvg first (of several, the one that differs least from the rest), then names."""
        if tuple(method.facts[key] for key in METHOD) != USUAL:
            return sys.maxsize, by_size(method.name)
        return sum(len(also_differ(method, one, chosen)) for one in made), by_size(method.name)

    return sorted(made, key=usual_first), chosen


def also_differ(method: Method, base: Method, by: Sequence[str]) -> list[str]:
    """The settings that differ, apart from those that name the methods."""
    return [key for key, v in method.facts.items() if key not in by and v != base.facts[key]]


def _method_names(facts: Sequence[Facts], by: Sequence[str]) -> list[str]:
    """Names from the settings `by`; names that clash also get the other settings that differ."""
    brief = [{**own, by[0]: _brief(own[by[0]], [f[by[0]] for f in facts])} for own in facts]
    names = [_method_name(own, by) for own in brief]
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        alike = [brief[place] for place in places]
        more = [key for key in brief[0] if len({own[key] for own in alike}) > 1]
        for place in places:
            names[place] = _method_name(brief[place], [*by, *more])
    return names


def _brief(value: str, values: Sequence[str]) -> str:
    """`fedprox:mu=0.01` without its hyper-parameters, if no other value has that name."""
    name = split(value)[0]
    shown = label(name) if is_own(name) else name
    alone = {v for v in values if split(v)[0] == name} == {value}
    return shown if alone else value.replace(name, shown, 1)


def _method_name(facts: Facts, by: Sequence[str]) -> str:
    """A name such as `fedavg, momentum:lr=0.1, batch_size=5`, without choices at their default."""
    parts: list[str] = []
    for key in by:
        usual = key in CHOICES and facts[key] == str(Settings.model_fields[key].default)
        if not (parts and usual):
            parts.append(facts[key] if key in CHOICES else f"{key}={facts[key]}")
    return ", ".join(parts)


def by_size(name: str) -> list[str | float]:
    """A sort key for names that orders the numbers in them by value."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [float(part) if place % 2 else part for place, part in enumerate(parts)]

"""The identity of a run: what determines its numbers, as JSON that is the same in every process.

A run is resumed, or its result returned again, only if its identity is the same; runs that are
compared must not mean different things by the same settings.  Code is compared without comments,
docstrings and layout, and values without addresses.  What only one of two identities has is not
compared, so folders of earlier versions can be read.
"""

import ast
import dis
import hashlib
import inspect
import json
import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import lru_cache, partial
from math import isfinite
from pathlib import Path, PurePath
from sys import stdlib_module_names
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from wima.core.errors import check
from wima.runs.folder import environment
from wima.runs.own_code import OWN, is_own, text_of
from wima.runs.run import Run
from wima.runs.settings import Settings

Json: TypeAlias = Any
NAMED = {"torch", "numpy", "wima", *stdlib_module_names}  # whose code is known by its version
DEPTH, LONG = 8, 4000  # levels of objects in objects; characters of a part
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
VERSIONS = ("wima", "torch", "numpy")
FACTS = ("engine", "data_checksum", "noise")
DATA = ("data", "clients", "alpha", "split", "data_seed", "client_test")  # settings


def checksum(text: str | bytes) -> str:
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()[:16]


def described(thing: Any, inside: tuple[int, ...] = (), codes: set[Any] | None = None) -> Json:
    """What a value is, as JSON.  inside: what contains it; codes: described elsewhere in the part.

    Numbers and text are themselves, arrays have a checksum, objects their class and attributes,
    functions and classes their name and a checksum of their source, with what they refer to.
    """
    import numpy as np
    import torch
    from torch import nn

    codes = set() if codes is None else codes
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    if isinstance(thing, float):
        return thing if isfinite(thing) else str(thing)
    if isinstance(
        thing, PurePath | torch.dtype | torch.device | np.dtype | complex | bytes | range
    ):
        return f"{type(thing).__name__} {thing!s}"
    if id(thing) in inside or len(inside) > DEPTH:
        return _name(type(thing))

    def inner(value: Any) -> Json:
        return described(value, (*inside, id(thing)), codes)

    if isinstance(thing, torch.Tensor | np.ndarray | np.generic) or (
        hasattr(thing, "__array__") and not isinstance(thing, type)
    ):
        return _array(thing)
    if isinstance(thing, nn.Module):
        state = thing.state_dict()
        return _module(thing, inner) | {"state": {name: inner(state[name]) for name in state}}
    if isinstance(thing, partial):
        return {"partial": inner(thing.func), "with": inner([thing.args, thing.keywords])}
    if isinstance(thing, MethodType):
        return {"method": thing.__name__, "of": inner(thing.__self__)}
    if isinstance(thing, FunctionType | type):
        return _code(thing, codes, inner)
    if isinstance(thing, BuiltinFunctionType | ModuleType):
        return _name(thing)
    if isinstance(thing, Mapping):
        names = {k if isinstance(k, str) else json.dumps(inner(k)): k for k in thing}
        return {name: inner(thing[names[name]]) for name in sorted(names)}
    if isinstance(thing, Set):
        return sorted((inner(item) for item in thing), key=json.dumps)
    if isinstance(thing, list | tuple) and not hasattr(thing, "_fields"):
        return [inner(item) for item in thing]
    if is_dataclass(thing):
        values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    elif hasattr(thing, "_fields"):
        values = thing._asdict()
    elif _package(type(thing)) in NAMED and not callable(thing):
        values = {}  # a generator, a logger, a run: it has a state, but does not compute
    else:
        values = getattr(thing, "__wrapped__", None) or getattr(thing, "__dict__", {})
        values = values if isinstance(values, dict) else {"wrapped": values}
    return {"type": inner(type(thing)), **{name: inner(values[name]) for name in sorted(values)}}


def _package(thing: Any) -> str:
    return str(getattr(thing, "__module__", None) or "builtins").partition(".")[0]


def _name(thing: Any) -> str:
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")
    return f"{getattr(thing, '__module__', None) or 'builtins'}:{name}"


def _array(array: Any) -> Json:
    import numpy as np
    import torch

    from wima.simulation.task import add_array

    if isinstance(array, torch.Tensor):
        dtype, shape = str(array.dtype), list(array.shape)
        array = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    else:
        array = np.asarray(array)
        dtype, shape = str(array.dtype), list(array.shape)
    if array.dtype.hasobject:
        return {"array": shape, "sum": checksum(json.dumps(described(array.tolist())))}
    total = hashlib.sha256()
    add_array(total, np.atleast_1d(array))
    return {"array": shape, "dtype": dtype, "sum": total.hexdigest()[:16]}


def _module(module: Any, inner: Any) -> dict[str, Json]:
    """A network without its weights: also the functions and numbers that its repr does not show."""
    from torch import nn

    usual = vars(nn.Module()).keys()
    kinds = {_name(type(part)): type(part) for part in module.modules()}
    return {
        "module": ADDRESS.sub("", repr(module)),
        "classes": {n: inner(kinds[n]) for n in sorted(kinds) if _package(kinds[n]) not in NAMED},
        "attributes": {
            f"{place}.{name}": inner(value)
            for place, part in module.named_modules()
            for name, value in sorted(vars(part).items())
            if name not in usual
        },
    }


# Code


def _code(thing: Any, codes: set[Any], inner: Any) -> Json:
    """A function or class: its name; if it is the user's, also its source and what it refers to."""
    name, own = _name(thing), _package(thing) not in NAMED
    cells = getattr(thing, "__closure__", None) or ()
    if thing in codes or not (own or cells):
        return name
    codes.add(thing)
    entry: dict[str, Json] = {"code": name}
    if cells:
        names = thing.__code__.co_freevars
        entry["closure"] = {n: inner(_content(c)) for n, c in zip(names, cells, strict=True)}
    if not own:
        return entry
    functions = [*_functions(thing)]
    try:
        entry["source"] = checksum(_source(thing))
    except (OSError, TypeError, SyntaxError, ValueError):  # typed at a prompt, for example
        entry["source"] = checksum(json.dumps([_bytecode(f.__code__) for f in functions]))
    if isinstance(thing, type):
        plain = {n: v for n, v in vars(thing).items() if not n.startswith("_") and not callable(v)}
        plain = {n: v for n, v in plain.items() if not hasattr(v, "__get__")}
        entry["bases"] = [inner(base) for base in thing.__bases__]
        entry["values"] = {n: inner(plain[n]) for n in sorted(plain)}
    else:
        entry["defaults"] = inner([thing.__defaults__, thing.__kwdefaults__])
    if "-packages" not in functions[0].__code__.co_filename if functions else True:
        used = {n: value for function in functions for n, value in _globals(function)}
        entry["uses"] = {n: inner(used[n]) for n in sorted(used) if used[n] is not thing}
    return {key: value for key, value in entry.items() if value}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _functions(thing: Any) -> Iterator[FunctionType]:
    """A function itself; the methods of a class."""
    for value in vars(thing).values() if isinstance(thing, type) else [thing]:
        function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
        if isinstance(function, FunctionType):
            yield function


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The global values that a function reads, also from the user's modules."""
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        for step in dis.get_instructions(code):
            if step.opname != "LOAD_GLOBAL" or step.argval not in function.__globals__:
                continue
            value = function.__globals__[step.argval]
            if not isinstance(value, ModuleType):
                yield step.argval, value
            elif value.__name__.partition(".")[0] not in NAMED:
                names = [name for name in code.co_names if name in vars(value)]
                yield from ((f"{step.argval}.{name}", vars(value)[name]) for name in names)


def _source(thing: Any) -> str:
    """The source of a function or class; of several lambdas in a line, all."""
    kind: Any = (
        ast.Lambda if thing.__name__ == "<lambda>" else ast.FunctionDef | ast.AsyncFunctionDef
    )
    functions = [f for f in _functions(thing) if f.__code__.co_filename != "<string>"]
    text, place = inspect.findsource(functions[0].__code__ if functions else thing)
    line = functions[0].__code__.co_firstlineno if functions else place + 1
    nodes = []
    for node in ast.walk(_parsed("".join(text))):
        if not isinstance(node, ast.ClassDef if isinstance(thing, type) else kind):
            continue
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        near = (
            first <= line <= (node.end_lineno or first)
            if isinstance(thing, type)
            else first == line
        )
        if near and getattr(node, "name", "<lambda>") == thing.__name__:
            nodes.append(ast.unparse(node))
    if not nodes:
        raise OSError("the source has changed")
    return "\n".join(nodes)


@lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module:
    """A syntax tree without docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        value = first.value if isinstance(first, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined, index]
    return tree


def _bytecode(code: CodeType) -> Json:
    consts = [_bytecode(c) if isinstance(c, CodeType) else described(c) for c in code.co_consts]
    return [code.co_code.hex(), consts, list(code.co_names)]


# The identity of a run, and where it is compared


def code_of(settings: Settings) -> dict[str, str]:
    """Checksums of the files that the settings' own code was imported from, by name."""
    texts = {name: text_of(name) for name in settings.own_names()}
    return {n: checksum(ast.unparse(_parsed(text))) for n, text in texts.items() if text}


def identity_of(settings: Settings, simulation: Any) -> dict[str, Json]:
    """What must be the same for a run to resume to the same bytes."""
    parts: dict[str, Json] = {}
    for name, thing in simulation.parts().items():
        try:
            whole = _module(thing, described) if name == "model" and thing else described(thing)
        except Exception as error:  # a part may be any object
            whole = f"{_name(type(thing))}, {type(error).__name__}"
        text = json.dumps(whole)
        parts[name] = json.loads(text) if len(text) <= LONG else {"checksum": checksum(text)}
    around = {**environment(), **simulation.facts()}
    facts = {name: around[name] for name in (*VERSIONS, *FACTS) if name in around}
    return {**settings.in_results(), **facts, "parts": parts, "code": code_of(settings)}


def differences(then: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    """What differs, in words: settings, and what both have."""
    now, lines = json.loads(json.dumps(now)), []
    for name in sorted(then.keys() | now.keys()):
        if name in ("parts", "code"):
            before, after = then.get(name, {}), now.get(name, {})
            both = sorted(before.keys() & after.keys())
            lines += [
                _first(key, before[key], after[key]) for key in both if before[key] != after[key]
            ]
        elif name in then or name in Settings.model_fields:
            lines += [_first(name, then.get(name), now.get(name))] * (
                then.get(name) != now.get(name)
            )
    return lines


def _first(path: str, then: Json, now: Json) -> str:
    """The first place where two values differ."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            if then.get(key) != now.get(key):
                return _first(f"{path}.{key}", then.get(key), now.get(key))
    if path.endswith((".source", ".py")) or ":" in path:
        return f"{path.removesuffix('.source')}: its code was changed"
    return f"{path}: {then!r:.200} then, {now!r:.200} now"


def conflicts(runs: Iterable[Any]) -> dict[Path, str]:
    """Runs that cannot be used beside newer ones, and why: the same settings mean other things.

    A run also conflicts with its settings' own code, if that was imported and has changed.
    """
    wrong: dict[Path, str] = {}
    newest: dict[str, tuple[Json, Path]] = {}
    for run in sorted(runs, key=lambda run: str(run.environment.get("started", "")), reverse=True):
        now = code_of(run.settings)
        changed = [
            n for n, total in run.identity.get("code", {}).items() if now.get(n, total) != total
        ]
        if changed:
            wrong[run.path] = f"the code of {', '.join(changed)} has changed since it was run"
        for what, key, value in _claims(run):
            place = json.dumps([what, key], sort_keys=True)
            first, path = newest.setdefault(place, (value, run.path))
            if value != first:
                wrong.setdefault(run.path, f"its {what} differs from that of {path}")
    return wrong


def _claims(run: Any) -> Iterator[tuple[str, Json, Json]]:
    """What was used, the settings that stand for it, and its checksum or description."""
    settings, own = run.settings.in_results(), run.settings.data.name == OWN
    seed = settings.pop("seed")
    data = [settings.get(name) for name in DATA] + [seed] * own
    if run.environment.get("data_checksum"):
        yield "data", data, run.environment["data_checksum"]
    yield from ((f"code of {n}", None, total) for n, total in run.identity.get("code", {}).items())
    if own:  # settings name Python objects, but do not define them
        for name, part in run.identity.get("parts", {}).items():
            if name != "start":
                yield (
                    name,
                    None if name in ("model", "loss", "metrics", "transform") else settings,
                    part,
                )


# Whose folder it is


def origin() -> dict[str, Json]:
    """The user and the machine, by a checksum, that make a run folder."""
    try:
        machine = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        machine = ""
    user = os.getuid() if hasattr(os, "getuid") else None  # Windows has none
    return {"user": user, "machine": checksum(f"wima {machine or platform.node()}")}


def check_trusted(run: Run, trust: bool, names: Collection[str] = (), how: str = "--trust") -> None:
    """Refuse to import the code that another user's folder names.  names: what this user named."""
    here, listed = origin(), [*run.settings.own_names(), *filter(is_own, run.settings.trackers)]
    foreign = [name for name in listed if name not in names]
    theirs = run.origin != here if run.origin else False  # older versions did not record it
    check(
        trust or not foreign or not (theirs or run.path.stat().st_uid != (here["user"] or 0)),
        f"{run.path} was not made by this user on this machine, and its settings name code, which "
        f"would be imported: {', '.join(foreign)}. Read that code; if you trust it, add {how}.",
    )

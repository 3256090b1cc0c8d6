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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path, PurePath
from sys import stdlib_module_names
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from wima.core.errors import check
from wima.runs.folder import environment
from wima.runs.own_code import OWN, is_own, text_of
from wima.runs.settings import Settings

Json: TypeAlias = Any
VERSIONS, FACTS = ("wima", "torch", "numpy"), ("engine", "data_checksum", "noise")
DATA = ("data", "clients", "alpha", "split", "data_seed", "client_test")  # settings
TASK = ("model", "loss", "metrics", "transform")  # parts that belong to a user's own task
NAMED = {"torch", "numpy", "wima", *stdlib_module_names}  # whose code is known by its version
DEPTH, LONG = 8, 4000  # levels of objects in objects; characters of a part
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def described(
    thing: Any, inside: tuple[int, ...] = (), codes: set[Any] | None = None, weights: bool = True
) -> Json:
    """What a value is, as JSON.

    Numbers and text are themselves, arrays have a checksum, objects their class and attributes,
    functions and classes their name and a checksum of their source, with what they refer to.
    inside: what contains it; codes: described already; weights: of a network.
    """
    import numpy as np
    import torch

    from wima.simulation.task import add_array

    codes = set() if codes is None else codes
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    plain = float | complex | bytes | Enum | PurePath | torch.dtype | torch.device
    if isinstance(thing, plain):
        return thing if isinstance(thing, float) and thing - thing == 0 else str(thing)
    if id(thing) in inside or len(inside) > DEPTH:
        return _name(type(thing))

    def inner(value: Any) -> Json:
        return described(value, (*inside, id(thing)), codes)

    def each(values: Mapping[str, Any]) -> dict[str, Json]:
        return {name: inner(values[name]) for name in sorted(values)}

    if isinstance(thing, torch.nn.Module):  # also what its repr does not show
        kinds = {_name(type(part)): type(part) for part in thing.modules()}
        shown, usual = ADDRESS.sub("", repr(thing)), vars(torch.nn.Module()).keys()
        values = {
            f"{place}.{name}": value
            for place, part in thing.named_modules()
            for name, value in vars(part).items()
            if name not in usual
        }
        users = {name: kind for name, kind in kinds.items() if _package(kind) not in NAMED}
        state = each(thing.state_dict()) if weights else {}
        return {"module": shown, "classes": each(users), "values": each(values), "weights": state}
    if hasattr(thing, "__array__") and not isinstance(thing, type):
        tensor = thing.detach().cpu() if isinstance(thing, torch.Tensor) else None
        # Bytes, because NumPy lacks bfloat16.
        array = np.asarray(thing if tensor is None else tensor.reshape(-1).view(torch.uint8))
        if array.dtype.hasobject:
            return inner(array.tolist())
        total = hashlib.sha256()
        add_array(total, np.atleast_1d(array))
        like = array if tensor is None else tensor
        return {"array": f"{like.dtype} {[*like.shape]}", "sum": total.hexdigest()[:16]}
    if isinstance(thing, partial):
        return {"partial": inner(thing.func), "with": inner([thing.args, thing.keywords])}
    if isinstance(thing, MethodType):
        return {"method": thing.__name__, "of": inner(thing.__self__)}
    if isinstance(thing, FunctionType | type):
        return _code(thing, codes, inner)
    if isinstance(thing, ModuleType):
        own = _package(thing) not in NAMED
        return [
            thing.__name__,
            checksum(ast.unparse(_parsed(inspect.getsource(thing)))) if own else "",
        ]
    if isinstance(thing, BuiltinFunctionType):
        return _name(thing)
    if isinstance(thing, Mapping):
        return each(
            {k if isinstance(k, str) else json.dumps(inner(k)): v for k, v in thing.items()}
        )
    if isinstance(thing, Set):
        return sorted((inner(item) for item in thing), key=json.dumps)
    if isinstance(thing, Sequence) and not hasattr(thing, "_fields"):
        return [inner(item) for item in thing]
    if is_dataclass(thing):
        values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    elif hasattr(thing, "_fields"):
        values = thing._asdict()
    elif _package(type(thing)) in NAMED and not callable(thing):
        values = {}  # a generator, a logger, a run: it has a state, but does not compute
    else:
        values = dict(getattr(thing, "__dict__", {}))
    return {"type": inner(type(thing)), **each(values)}


def _package(thing: Any) -> str:
    name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    return str(name or "builtins").partition(".")[0]


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', None) or 'builtins'}:{thing.__qualname__}"


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
        entry["closure"] = {n: inner(c.cell_contents) for n, c in zip(names, cells, strict=True)}
    if not own:
        return entry
    parts = vars(thing).values() if isinstance(thing, type) else [thing]
    parts = [getattr(p, "__func__", None) or getattr(p, "fget", None) or p for p in parts]
    functions = [part for part in parts if isinstance(part, FunctionType)]
    try:
        entry["source"] = checksum(_source(thing))
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, for example
        entry["source"] = checksum(json.dumps([_bytecode(f.__code__) for f in functions]))
    if isinstance(thing, type):
        entry["bases"] = inner(list(thing.__bases__))
        plain = {n: v for n, v in vars(thing).items() if not (n.startswith("_") or callable(v))}
        entry["values"] = inner({n: v for n, v in plain.items() if not hasattr(v, "__get__")})
    else:
        entry["defaults"] = inner([thing.__defaults__, thing.__kwdefaults__])
    if not any("-packages" in function.__code__.co_filename for function in functions):
        entry["uses"] = inner({n: v for f in functions for n, v in _globals(f) if v is not thing})
    return entry


def _globals(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The global values that a function reads."""
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        names = {s.argval for s in dis.get_instructions(code) if s.opname == "LOAD_GLOBAL"}
        yield from ((n, v) for n, v in function.__globals__.items() if n in names)


def _source(thing: Any) -> str:
    """The source of a function or class; of several lambdas in a line, all."""
    lines, place = inspect.findsource(thing)
    nodes = []
    for node in ast.walk(_parsed("".join(lines))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            if first == place + 1 and getattr(node, "name", "<lambda>") == thing.__name__:
                nodes.append(ast.unparse(node))
    if not nodes:
        raise OSError("the source has changed since it was imported")
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
    return {
        f"code.{name}": checksum(ast.unparse(_parsed(text))) for name, text in texts.items() if text
    }


def identity_of(settings: Settings, simulation: Any) -> dict[str, Json]:
    """What must be the same for a run to resume to the same bytes.

    Settings, versions and facts are named as they are; `part.` and `code.` begin other names.
    """
    identity, around = settings.in_results(), {**environment(), **simulation.facts()}
    identity |= {name: around[name] for name in (*VERSIONS, *FACTS) if name in around}
    for name, thing in simulation.parts().items():
        try:
            whole = described(thing, weights=name != "model")
        except Exception as error:  # a part may be any object
            whole = f"{_name(type(thing))}, {type(error).__name__}"
        text = json.dumps(whole)
        identity[f"part.{name}"] = whole if len(text) <= LONG else checksum(text)
    return json.loads(json.dumps(identity | code_of(settings)))  # type: ignore[no-any-return]


def only_new(identity: Mapping[str, Json]) -> dict[str, Json]:
    """What is not in the settings and in environment.json anyway."""
    return {name: what for name, what in identity.items() if name.startswith(("part.", "code."))}


def differences(then: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    """What differs, in words: settings, and what both have."""
    names = then.keys() & now.keys() | Settings.model_fields.keys() & (then.keys() | now.keys())
    wrong = [name for name in sorted(names) if then.get(name) != now.get(name)]
    return [_first(name.removeprefix("part."), then.get(name), now.get(name)) for name in wrong]


def _first(path: str, then: Json, now: Json) -> str:
    """The first place where two values differ."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            if then.get(key) != now.get(key):
                return _first(f"{path}.{key}", then.get(key), now.get(key))
    if path.startswith("code.") or path.endswith(".source"):
        return f"{path.removeprefix('code.').removesuffix('.source')}: its code was changed"
    return f"{path}: {then!r:.200} then, {now!r:.200} now"


def conflicts(runs: Iterable[Any]) -> dict[Path, str]:
    """Runs that cannot be used beside newer ones, and why: the same settings mean other things.

    A run also conflicts with its settings' own code, if that was imported and has changed.
    """
    wrong: dict[Path, str] = {}
    newest: dict[str, tuple[Json, Path]] = {}
    for run in sorted(runs, key=lambda run: str(run.environment.get("started")), reverse=True):
        for name, now in code_of(run.settings).items():
            if run.identity.get(name, now) != now:
                wrong[run.path] = f"the code of {name.removeprefix('code.')} has changed since"
        for what, settings, value in _claims(run):
            key = json.dumps([what, settings], sort_keys=True)
            first, path = newest.setdefault(key, (value, run.path))
            if value != first:
                wrong.setdefault(run.path, f"its {what} differs from that of {path}")
    return wrong


def _claims(run: Any) -> Iterator[tuple[str, Json, Json]]:
    """What was used, the settings that stand for it, and its checksum or description."""
    settings, own = run.settings.in_results(), run.settings.data.name == OWN
    seed = settings.pop("seed")
    if run.environment.get("data_checksum"):
        data = [settings.get(name) for name in DATA] + [seed] * own
        yield "data", data, run.environment["data_checksum"]
    for name, value in run.identity.items():
        kind, _, what = name.partition(".")
        if kind == "code":
            yield f"code of {what}", None, value
        elif own and what != "start":  # settings name Python objects, but do not define them
            yield what, None if what in TASK else settings, value


# Whose folder it is


def origin() -> dict[str, Json]:
    """The user that makes a run folder, and a checksum of the machine."""
    file = Path("/etc/machine-id")
    machine = (file.is_file() and file.read_text(encoding="utf-8").strip()) or platform.node()
    user = os.getuid() if hasattr(os, "getuid") else 0  # Windows has none
    return {"user": user, "machine": checksum(f"wima {machine}")}


def check_trusted(run: Any, trust: bool, names: Collection[str] = (), how: str = "--trust") -> None:
    """Refuse to import the code that another user's folder names.  names: what this user named."""
    listed = [*run.settings.own_names(), *filter(is_own, run.settings.trackers)]
    foreign, here = [name for name in listed if name not in names], origin()
    # Older versions did not record the origin: the folder's owner decides.
    ours = run.path.stat().st_uid == here["user"] and (run.origin or here) == here
    check(
        trust or not foreign or ours,
        f"{run.path} was not made by this user on this machine, and its settings name code, which "
        f"would be imported: {', '.join(foreign)}. Read that code; if you trust it, add {how}.",
    )

"""Own code in settings, and settings of a run that is defined by Python objects."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib import import_module, invalidate_caches
from inspect import Signature, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from wima.core.errors import UsageError, check, unknown

if TYPE_CHECKING:
    from torch import nn

    from wima.data.federated import Bundle


OWN = "own"  # data and model of a run that was started with Python objects
IN_PYTHON = "`wima.run(..., out=..., resume=True)` with the same objects"


class Kind(NamedTuple):
    """What a setting chooses by name."""

    name: str
    registry: Mapping[str, Any]
    words: str = ""  # what a user's own has to be: a class with this base and these methods
    base: type = object
    methods: tuple[str, ...] = ()


@cache
def kinds() -> dict[str, Kind]:
    """Setting -> what it chooses."""
    from wima import algorithms, averaging, models
    from wima.algorithms import base, server_opt
    from wima.simulation import measures, options, privacy
    from wima.simulation.measures import finetune

    def derived(name: str, registry: Mapping[str, Any], base: type) -> Kind:
        return Kind(name, registry, f"a class derived from wima.{base.__name__}", base)

    server = "a class with methods init and update"
    return {
        "model": Kind("model", models.BY_NAME),
        "algorithm": derived("algorithm", algorithms.BY_NAME, base.Algorithm),
        "server": Kind("server optimizer", server_opt.BY_NAME, server, methods=("init", "update")),
        "schedule": Kind(
            "schedule", options.SCHEDULES, "a class with factor(t, rounds)", methods=("factor",)
        ),
        "averagers": derived("averager", averaging.BY_NAME, averaging.Averager),
        "privacy": derived("privacy", privacy.BY_NAME, privacy.Gaussian),
        "finetune": derived("fine-tuning", finetune.BY_NAME, finetune.FineTune),
        "measures": derived("measure", {}, measures.base.Measure),  # all are the user's own
    }


def is_own(name: str) -> bool:
    """Whether a name refers to a user's own code: `module:Thing` or `file.py:Thing`."""
    place, _, thing = name.rpartition(":")
    dotted = all(part.isidentifier() for part in place.split("."))
    return thing.isidentifier() and (dotted or place.endswith(".py"))


def split(text: str) -> tuple[str, list[str]]:
    """`name:key=value:...` as the name and the rest; a user's own name contains a colon."""
    parts = text.split(":")
    count = next((n for n, part in enumerate(parts) if "=" in part), len(parts))
    name = ":".join(parts[:count])
    return (name, parts[count:]) if is_own(name) else (parts[0], parts[1:])


def label(name: str) -> str:
    """A short name, for folders and titles."""
    return name.rpartition(":")[2] if is_own(name) else Path(name).stem


def find(kind: Kind, name: str) -> Callable[..., Any]:
    """What a name refers to: registered, or a user's own."""
    if name in kind.registry:
        return kind.registry[name]  # type: ignore[no-any-return]
    first, _, rest = name.partition(":")
    check(first not in kind.registry, f"{kind.name} {first!r}: expected key=value, got {rest!r}.")
    if not is_own(name):
        raise unknown(kind.name, name, kind.registry)
    thing = own_thing(kind.name, name)
    if kind.name == "model":
        return _model(name, thing)
    fits = isinstance(thing, type) and issubclass(thing, kind.base)
    fits = fits and all(callable(getattr(thing, method, None)) for method in kind.methods)
    check(fits, f"{kind.name} {name!r} must be {kind.words}, got {thing!r:.80}.")
    return thing  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _signature_of_class(kind: type) -> Signature:
    return signature(kind)  # slow: a sheet makes thousands of averagers


def _signature(make: Callable[..., Any]) -> Signature:
    return _signature_of_class(make) if isinstance(make, type) else signature(make)


def parameters(kind: str, make: Callable[..., Any]) -> list[str]:
    """The names of the hyper-parameters."""
    listed = list(_signature(make).parameters.values())[2 if kind == "model" else 0 :]
    return [p.name for p in listed if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def check_call(name: str, make: Callable[..., Any], /, *arguments: Any, **options: Any) -> None:
    """Raise `UsageError` unless the function can be called with these arguments."""
    try:
        _signature(make).bind(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} cannot be called: {error}.") from None


def own_thing(kind: str, name: str) -> Any:
    """The object that a user's own name refers to."""
    place, _, thing = name.rpartition(":")
    module = _from_file(kind, name) if place.endswith(".py") else _imported(kind, name, place)
    if thing not in vars(module):
        raise unknown(f"name in {place}", thing, [n for n in vars(module) if not n.startswith("_")])
    return getattr(module, thing)


def source(name: str) -> Path | None:
    """The file that an object was loaded from."""
    place = name.rpartition(":")[0]
    module = sys.modules.get(Path(place).stem if place.endswith(".py") else place)
    file = getattr(module, "__file__", None)
    return Path(file) if file else None


_TEXTS: dict[str, str] = {}  # module -> the source that it was imported from


def text_of(name: str) -> str:
    """The source that a user's own name was imported from; empty if it was not imported."""
    place = name.rpartition(":")[0]
    return _TEXTS.get(Path(place).stem if place.endswith(".py") else place, "")


def _from_file(kind: str, name: str) -> ModuleType:
    """Import a file as a module of the same name, so that worker processes can import it too."""
    path = Path(name.rpartition(":")[0]).expanduser()
    check(path.is_file(), f"{kind} {name!r}: there is no file {path} in the folder {Path.cwd()}.")
    path = path.resolve()
    module = _imported(kind, name, path.stem, path.parent)
    where = getattr(module, "__file__", None) or "built in"
    check(
        Path(where).resolve() == path,
        f"{kind} {name!r}: another module is called {path.stem} ({where}); rename the file.",
    )
    return module


def _imported(kind: str, name: str, module: str, folder: Path | None = None) -> ModuleType:
    path = str(folder or Path.cwd())
    if path not in sys.path:
        sys.path.insert(0, path)  # permanently: worker processes get this list
    invalidate_caches()
    fresh = module not in sys.modules
    try:
        imported = import_module(module)
        if (fresh or module not in _TEXTS) and imported.__file__:
            _TEXTS[module] = Path(imported.__file__).read_text(encoding="utf-8", errors="replace")
        return imported
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name)):
            raise UsageError(
                f"{kind} {name!r}: there is no module {error.name!r} in {path} or on Python's "
                "path; run the command in its folder, or add that folder to PYTHONPATH."
            ) from None
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise UsageError(
            f"{kind} {name!r} cannot be imported: {type(error).__name__}: {error} "
            f"({frame.filename}, line {frame.lineno})."
        ) from error


def _model(name: str, function: Any) -> Callable[..., nn.Module]:
    """A user's function as one of (shape, classes), which it may also ignore."""
    from torch import nn

    try:
        listed = signature(function).parameters.values()
    except (TypeError, ValueError):
        raise UsageError(f"model {name!r} must be a function, got {function!r:.80}.") from None
    named = [p for p in listed if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [p.name for p in named if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
    check(
        len(needed) in (0, 2),
        f"model {name!r} must be a function of (shape, classes) or without arguments, but it "
        f"requires ({', '.join(needed)}).",
    )

    def make(shape: tuple[int, ...], classes: int, **options: Any) -> nn.Module:
        arguments = (shape, classes) if needed else ()
        check_call(f"model {name!r}", function, *arguments, **options)
        module = function(*arguments, **options)
        check(
            isinstance(module, nn.Module),
            f"model {name!r} must return a torch.nn.Module, got {module!r:.80}.",
        )
        return module  # type: ignore[no-any-return]

    first = list(signature(make).parameters.values())[:2]
    optional = [p.replace(kind=p.KEYWORD_ONLY) for p in named[len(needed) :]]
    make.__signature__ = Signature([*first, *optional])  # type: ignore[attr-defined]
    return make


def own_data(name: str, settings: dict[str, Any], options: dict[str, Any]) -> Bundle:
    """The result of a user's function.  settings are passed to parameters of the same name.

    A setting that is not None is refused if the function has no such parameter.
    """
    from wima.data.federated import Bundle, FederatedData, as_array

    function = own_thing("data", name)
    check(callable(function), f"data {name!r} must be a function, got {function!r:.80}.")
    names = parameters("data", function)
    for option in options:
        if option not in names:
            raise unknown(f"option of data {name}", option, names or ["(it has none)"])
    for setting in ("clients", "alpha", "split"):
        fits = settings[setting] is None or setting in names
        check(fits, f"{name} has no parameter {setting}, so {setting} cannot be set.")
    arguments = {k: v for k, v in settings.items() if v is not None and k in names} | options
    check_call(f"data {name!r}", function, **arguments)
    bundle = function(**arguments)
    check(
        isinstance(bundle, Bundle) and isinstance(bundle.train, FederatedData),
        f"data {name!r} must return wima.Bundle(train, x_test, y_test, classes), where train is "
        f"wima.FederatedData, got {bundle!r:.80}.",
    )
    arrays = {field: as_array(getattr(bundle, field), field) for field in ("x_test", "y_test")}
    return bundle._replace(**arrays)  # type: ignore[no-any-return]


def check_choice(setting: str, choice: Any) -> None:
    """Raise `UsageError` unless the choice exists and accepts its hyper-parameters."""
    if setting == "data":
        from wima.data.sets import check_name

        own_thing("data", choice.name) if is_own(choice.name) else check_name(choice.name)
    elif setting == "model":  # needs the shape of examples, so it is not built here
        choice.call(setting)
    else:
        choice.make(setting)

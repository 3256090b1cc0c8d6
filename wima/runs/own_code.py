"""Own code in settings, and settings of a run that is defined by Python objects."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module, invalidate_caches
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from wima.core.errors import UsageError, check, unknown

if TYPE_CHECKING:
    from torch import nn

    from wima.data.federated import Bundle


OWN = "own"  # data and model of a run that was started with Python objects
IN_PYTHON = "`wima.run(..., out=..., resume=True)` with the same objects"


class Expected(NamedTuple):
    """What a user's own object has to be."""

    words: str
    base: type = object
    methods: tuple[str, ...] = ()


def expected_of(kind: str) -> Expected:
    """What a user's own object of that kind has to be."""
    from wima.algorithms.base import Algorithm
    from wima.averaging.base import Averager
    from wima.simulation.measures.base import Measure
    from wima.simulation.privacy import Gaussian

    return {
        "algorithm": Expected("a class derived from wima.Algorithm", Algorithm),
        "averager": Expected("a class derived from wima.Averager", Averager),
        "server optimizer": Expected(
            "a class with methods init and update", object, ("init", "update")
        ),
        "schedule": Expected("a class with factor(t, rounds)", object, ("factor",)),
        "measure": Expected("a class derived from wima.Measure", Measure),
        "privacy": Expected("a class derived from wima.Gaussian", Gaussian),
        "tracker": Expected(
            "a class with methods start, record and finish", object, ("start", "record", "finish")
        ),
    }[kind]


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


def find(kind: str, name: str, registry: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """What a name refers to: registered, or a user's own."""
    if name in registry:
        return registry[name]
    first, _, rest = name.partition(":")
    check(first not in registry, f"{kind} {first!r}: expected key=value, got {rest!r}.")
    if not is_own(name):
        raise unknown(kind, name, registry)
    thing = own_thing(kind, name)
    if kind == "model":
        return _model(name, thing)
    expected = expected_of(kind)
    fits = isinstance(thing, type) and issubclass(thing, expected.base)
    fits = fits and all(callable(getattr(thing, method, None)) for method in expected.methods)
    check(fits, f"{kind} {name!r} must be {expected.words}, got {thing!r:.80}.")
    return thing  # type: ignore[no-any-return]


def parameters(kind: str, make: Callable[..., Any]) -> list[str]:
    """The names of the hyper-parameters."""
    listed = list(signature(make).parameters.values())[2 if kind == "model" else 0 :]
    return [p.name for p in listed if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def check_call(name: str, make: Callable[..., Any], /, *arguments: Any, **options: Any) -> None:
    """Raise `UsageError` unless the function can be called with these arguments."""
    try:
        signature(make).bind(*arguments, **options)
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
    try:
        return import_module(module)
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

    needed, options = _arguments(name, function)

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
    make.__signature__ = Signature([*first, *options])  # type: ignore[attr-defined]
    return make


def _arguments(name: str, function: Any) -> tuple[list[str], list[Parameter]]:
    """The required arguments of a function that makes a model, and the optional ones."""
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
    return needed, [p.replace(kind=p.KEYWORD_ONLY) for p in named[len(needed) :]]


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


def kinds() -> dict[str, tuple[str, Mapping[str, Any]]]:
    """Setting -> what it chooses, and the registry."""
    from wima import algorithms, averaging
    from wima.algorithms import server_opt
    from wima.simulation import options, privacy
    from wima.simulation.measures import finetune

    return {
        "algorithm": ("algorithm", algorithms.BY_NAME),
        "server": ("server optimizer", server_opt.BY_NAME),
        "schedule": ("schedule", options.SCHEDULES),
        "averagers": ("averager", averaging.BY_NAME),
        "privacy": ("privacy", privacy.BY_NAME),
        "finetune": ("fine-tuning", finetune.BY_NAME),
        "measures": ("measure", {}),  # all are the user's own
    }


def check_choice(setting: str, choice: Any) -> None:
    """Raise `UsageError` unless the choice exists and accepts its hyper-parameters."""
    if setting == "data":
        from wima.data.sets import check_name

        own_thing("data", choice.name) if is_own(choice.name) else check_name(choice.name)
    elif setting == "model":  # needs the shape of examples, so it is not built here
        from wima import models

        choice.call("model", models.BY_NAME)
    elif choice is not None:
        choice.make(*kinds()[setting])

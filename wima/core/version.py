"""The package's version, defined only here, and its public names, which are loaded on first use."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


def lazy_names(package: str, init: str) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` of a package, from its stub, which type checkers read too.

    init: the `__file__` of its `__init__.py`.  The `__init__.pyi` beside it has the names as lines
    like `from wima.averaging import EMA as EMA`; those of `from wima.algorithms import *` are lines
    of that form in its `__init__.py`.
    """
    where: dict[str, str] = {}
    stub = Path(init).with_suffix(".pyi")
    for block in stub.read_text(encoding="utf-8").split("\nfrom ")[1:]:
        module, _, names = block.split(maxsplit=2)
        if names.startswith("*"):
            folder = module.removeprefix(f"{package}.").replace(".", "/")
            names = (stub.parent / folder / "__init__.py").read_text(encoding="utf-8")
        where |= dict.fromkeys(re.findall(r"(\w+) as \1\b", names), module)
    public = sorted(name for name in where if not name.startswith("__"))

    def look_up(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(where[name]), name)

    return public, look_up

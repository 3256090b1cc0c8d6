"""The package offers its public names, and importing it is cheap."""

from __future__ import annotations

import pytest

import wima
from tests.helpers.commands import printed


def test_public_names_are_those_of_all() -> None:
    for name in wima.__all__:
        assert getattr(wima, name).__name__ == name
    assert set(dir(wima)) == {*wima.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = wima.nonsense


def test_importing_wima_does_not_import_torch() -> None:
    code = "import sys, wima; print('torch' in sys.modules, 'sklearn' in sys.modules)"
    assert printed(code).split() == ["False", "False"]

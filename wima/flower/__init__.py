"""Bridges to Flower: averages on any strategy, our algorithms as an app, any app on our workers."""

from importlib.util import find_spec

from wima.core.errors import UsageError
from wima.core.version import lazy_names

if find_spec("flwr") is None:
    raise UsageError("wima.flower needs Flower, which is not installed: pip install 'wima[flower]'")

# A node that only reports its client number need not wait for torch.
__all__, __getattr__ = lazy_names(__name__, __file__)


def __dir__() -> list[str]:
    return list(__all__)

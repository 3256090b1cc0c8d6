"""The server: plays the run that the run config names."""

from wima.flower import server_app as app

__all__ = ["app"]

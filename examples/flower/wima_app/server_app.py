"""The server: executes the run that the run config describes."""

from wima.flower import server_app as app

__all__ = ["app"]

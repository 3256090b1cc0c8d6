"""A node: one client, with its own examples and its own memory."""

from wima.flower import client_app as app

__all__ = ["app"]

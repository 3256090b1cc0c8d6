"""Bridges to Flower: averages on any strategy, our algorithms as an app, any app on our workers."""

from wima.flower.app.client import client_app as client_app
from wima.flower.app.nodes import Options as Options
from wima.flower.app.server import Federation as Federation, server_app as server_app
from wima.flower.averages.legacy import averaged_legacy as averaged_legacy
from wima.flower.averages.strategy import averaged as averaged
from wima.flower.grid import LocalGrid as LocalGrid, run_flower as run_flower

"""Runs that several tests look at, or go on with a copy of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import tracked
from tests.helpers.interrupted import killed_after, settings_of
from wima.runs.launch import launch


@pytest.fixture(scope="session")
def interrupted(tmp_path_factory) -> Path:
    """A run that stopped with two checkpoints, and the same run undisturbed."""
    folder = tmp_path_factory.mktemp("interrupted")
    settings = settings_of(algorithm="scaffold", rounds=12, checkpoint_every=5)
    launch(settings, folder / "whole")
    killed_after(11, settings, folder / "run")
    return folder


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> Path:
    """A finished run without trackers."""
    path = tmp_path_factory.mktemp("runs") / "plain"
    launch(tracked.settings_of(), path)
    return path

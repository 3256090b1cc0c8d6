"""A run that was interrupted, for all tests that go on with a copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest

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

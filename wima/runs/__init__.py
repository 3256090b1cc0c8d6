"""Runs: from settings to a folder with records, checkpoints and models."""

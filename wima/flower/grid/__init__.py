"""Runs any Flower app on our own processes."""

"""Averages on any of Flower's strategies."""

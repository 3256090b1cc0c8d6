"""Measurements of wima against bare SGD steps and against other simulators; see README.md."""

"""The Python view of a run: data frames, plots, numbers and modules."""

"""What Python gets of a run: data frames, plots, numbers and modules."""

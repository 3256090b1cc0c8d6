"""The public data sets: where their files are and how they are read."""

"""A run: settings in, a folder with records, checkpoints and models out."""

"""The window average in a training loop of your own."""

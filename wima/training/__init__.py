"""The window average in your own training loop."""

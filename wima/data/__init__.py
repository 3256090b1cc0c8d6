"""Data sets split among clients: by name, or from a user's own .npz file."""

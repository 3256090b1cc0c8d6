"""Our algorithms as a Flower app."""

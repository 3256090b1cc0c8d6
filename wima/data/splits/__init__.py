"""Which client holds which example."""

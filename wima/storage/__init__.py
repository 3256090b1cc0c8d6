"""Files that are complete or absent, locks, and large states on disk."""

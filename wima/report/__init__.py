"""Tables and pictures from run folders, and from nothing else."""

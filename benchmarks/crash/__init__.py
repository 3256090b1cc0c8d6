"""The crash laboratory: runs that are killed, disks that forget, files that are damaged."""

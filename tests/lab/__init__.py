"""The laboratory: runs that are killed, disks that forget, files that are damaged.

`python -m tests.lab --help` lists its experiments; the tests beside them do a share of each.
"""

"""Engines run rounds: `reference` plainly, `serial` in this process, `processes` in several,
`batched` with all clients at once; `auto` is the fastest of the last three.  `distributed` runs
them in the processes that torchrun or srun started.
"""

from __future__ import annotations

NAMES = ("auto", "reference", "serial", "processes", "batched", "distributed")
EXACT = ("reference", "serial", "processes", "distributed")  # the same bytes; not with `reduce`

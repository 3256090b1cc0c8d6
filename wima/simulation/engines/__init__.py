"""Engines run rounds: `reference` simply, `serial` in this process, `processes` in several,
`batched` with all clients at once, `distributed` on torchrun's ranks; `auto` picks one.
"""

NAMES = ("auto", "reference", "serial", "processes", "batched", "distributed")
EXACT = ("reference", "serial", "processes", "distributed")  # same bytes

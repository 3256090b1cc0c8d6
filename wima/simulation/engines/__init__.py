"""Engines run rounds: `reference` as simply as possible, `serial` in this process, `processes` in
several, `batched` with all clients at once; `auto` picks the fastest of the last three.
`distributed` runs rounds in the processes that torchrun started.
"""

NAMES = ("auto", "reference", "serial", "processes", "batched", "distributed")
EXACT = ("reference", "serial", "processes", "distributed")  # same bytes

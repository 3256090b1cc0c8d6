"""A worker that sends messages back."""

from __future__ import annotations

import os
import time

from wima.core.workers import Parent


def main() -> None:
    parent = Parent()
    for header, parts in parent:
        print("not a reply")
        if "exit" in header:
            os._exit(header["exit"])
        time.sleep(header.get("sleep", 0))
        for _ in range(header.get("times", 1)):
            parent.send({**header, "pid": os.getpid()}, *parts)

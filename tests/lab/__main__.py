"""The command line: python -m tests.lab --fuzz 10000.  Exits with 1 if anything was lost."""

from __future__ import annotations

import argparse
import sys

from tests.lab import configs, damage, fuzz, kills, replay


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.lab", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--crash", type=int, metavar="KILLS", help="kill runs at random moments")
    what.add_argument(
        "--replay",
        type=float,
        metavar="SHARE",
        help="crash after every write of a run, a resume, a sweep, a report and a Flower server, "
        "or after a share of them (1: all)",
    )
    what.add_argument("--damage", action="store_true", help="damage every file of a run folder")
    what.add_argument("--fuzz", type=int, metavar="N", help="read N damaged files of all kinds")
    what.add_argument(
        "--configs", type=int, metavar="N", help="stop and resume runs of N random configurations"
    )
    parser.add_argument("--seed", type=int, default=0, help="of crashes and damaged files (0)")
    asked = parser.parse_args(argv)
    if asked.crash is not None:
        sys.exit(kills.main(asked.crash, asked.seed))
    if asked.replay is not None:
        sys.exit(replay.main(asked.replay, asked.seed))
    if asked.fuzz is not None:
        sys.exit(fuzz.main(asked.fuzz, asked.seed))
    if asked.configs is not None:
        sys.exit(configs.main(asked.configs, asked.seed))
    sys.exit(damage.main(asked.seed))


if __name__ == "__main__":
    main()

"""The command line: python -m benchmarks --workload digits --peer all."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.environments import NotInstalled, python, versions
from benchmarks.micro import MICRO, measure
from benchmarks.peers import PEERS
from benchmarks.workloads import WORKLOADS, prepare


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--workload", choices=WORKLOADS, help="compare peers on a workload")
    what.add_argument(
        "--micro", choices=[*MICRO, "loop_auto"], help="a small measurement of wima alone"
    )
    what.add_argument("--report", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--peer", default="all", help=f"comma-separated: {', '.join(PEERS)}")
    parser.add_argument("--turns", type=int, default=5, help="turns of every peer (5)")
    parser.add_argument("--rounds", type=int, help="rounds per turn")
    parser.add_argument("--cold", action="store_true", help="do not start peers twice")
    parser.add_argument("--out", type=Path, help="Markdown file to write, with JSON beside it")
    asked = parser.parse_args(argv)
    asked.peer = list(PEERS) if asked.peer == "all" else asked.peer.split(",")
    unknown = [name for name in asked.peer if name not in PEERS]
    if unknown:
        parser.error(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    return asked


def compare(asked: argparse.Namespace) -> dict[str, object]:
    """Run the peers on the workload, interleaved."""
    from benchmarks.drive import interleave
    from benchmarks.report import peer_result

    name, rounds = asked.workload, asked.rounds or WORKLOADS[asked.workload].rounds
    prepare(name)
    commands, missing = {}, {}
    for peer in asked.peer:
        how = PEERS[peer]
        try:
            script = ["-m", f"benchmarks.peers.{how.script}", name, *how.arguments]
            commands[peer] = [python(how.environment), *script]
        except NotInstalled as reason:
            missing[peer] = {"failed": f"not installed: {reason}"}
    measured = interleave(commands, asked.turns, rounds, warm_up=not asked.cold)
    for peer, result in measured.items():
        result["versions"] = versions(PEERS[peer].environment)
    return peer_result(name, asked.turns, rounds, {**measured, **missing})


def main(argv: list[str] | None = None) -> None:
    asked = arguments(argv)
    from benchmarks.report import document, markdown, write

    if asked.report:
        document()
        return
    if asked.workload:
        result = compare(asked)
    elif asked.micro == "loop_auto":
        from benchmarks import loops

        result = loops.measure(asked.turns)
    else:
        result = measure(asked.micro, asked.turns)
    print(markdown(result))
    if asked.out:
        write(result, asked.out)


if __name__ == "__main__":
    main()

"""Known vulnerabilities in the versions of constraints.txt: `make audit`.

pip-audit has the same exit code whether it found something or could not reach its database.
Without the database nothing is known, which is said but is not a failure; everything else is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
UNREACHABLE = re.compile(
    r"ConnectionError|Could not connect|Max retries|NameResolution|ProxyError|ReadTimeout|timed out"
)


def main(*command: str) -> int:
    """command: pip-audit, as it is installed."""
    options = ["--requirement", str(CONSTRAINTS), "--no-deps", "--disable-pip"]
    try:
        done = subprocess.run(
            [*command, *options, "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        print("Not audited: pip-audit could not be installed; is there a network?")
        return 0
    found = re.search(r"Found \d+ known vulnerabilit", done.stderr)
    if done.returncode and not found and UNREACHABLE.search(done.stderr):
        print(f"Not audited: no database. {done.stderr.strip().splitlines()[-1]}")
        return 0
    print(done.stdout, done.stderr, sep="", end="")
    skipped, listed = done.stdout.count("could not be audited"), CONSTRAINTS.read_text().count("==")
    if skipped:
        print(f"Not audited: {skipped} of {listed} packages, which the database does not have.")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

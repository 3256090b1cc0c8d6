"""Damages files of every kind that wima reads, and has them read: tests.lab --fuzz 10000.

A file must be read, or refused with a sentence: no traceback, no hang, no gigabytes of memory.
Cases run in forked processes, which share what is imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import struct
import tempfile
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.lab.formats import FORMATS
from wima.core.errors import RunError, UsageError

SECONDS, MEMORY, BATCH = 10, 2**30, 100
BAD = ("traceback", "hang", "over memory")
NUMBERS = [b"-1", b"0", b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 30, b"9" * 5000, b"null"]
NUMBERS += [str(n).encode() for n in (2**31, 2**63, 2**64, 10**9, 10**12, -(10**12))]
BYTES = [b"\0", b"\xff", b"\r\n", b"\n", b"\xef\xbb\xbf", b"[" * 100_000, b'{"a":' * 9999, b"../"]


class Hang(BaseException):
    """Raised by the alarm."""


def mutate(content: bytes, draw: random.Random) -> bytes:
    """The content with one to three damages."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        content = draw.choice(MUTATIONS)(content, draw)
    return content


def _stretch(content: bytes, draw: random.Random) -> tuple[int, int]:
    begin = draw.randrange(len(content) + 1)
    return begin, min(len(content), begin + draw.choice((1, 4, 8, 64, 1000)))


def _flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 2, 8)) if content else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _cut(content: bytes, draw: random.Random) -> bytes:
    at = draw.randrange(len(content) + 1)
    return draw.choice((content[:at], content[at:], b""))


def _remove(content: bytes, draw: random.Random) -> bytes:
    begin, end = _stretch(content, draw)
    return content[:begin] + content[end:]


def _double(content: bytes, draw: random.Random) -> bytes:
    begin, end = _stretch(content, draw)
    return content[:end] + content[begin:end] * draw.choice((1, 1, 100)) + content[end:]


def _noise(content: bytes, draw: random.Random) -> bytes:
    begin, end = _stretch(content, draw)
    return content[:begin] + draw.randbytes(end - begin) + content[end:]


def _insert(content: bytes, draw: random.Random) -> bytes:
    at = draw.choice((0, len(content), draw.randrange(len(content) + 1)))
    return content[:at] + draw.choice(BYTES) + content[at:]


def _number(content: bytes, draw: random.Random) -> bytes:
    found = list(re.finditer(rb"-?\d+(?:\.\d+)?(?:e-?\d+)?|true|false|null", content))
    if not found:
        return _binary_number(content, draw)
    place = draw.choice(found)
    return content[: place.start()] + draw.choice(NUMBERS) + content[place.end() :]


def _binary_number(content: bytes, draw: random.Random) -> bytes:
    kind = draw.choice(("<H", "<I", "<Q", ">I"))
    size = struct.calcsize(kind)
    at = draw.randrange(max(1, len(content) - size))
    most = 2 ** (8 * size) - 1
    value = struct.pack(kind, draw.choice((0, 1, most, most // 2, most // 2 + 1)))
    return content[:at] + value + content[at + size :]


def _text(content: bytes, draw: random.Random) -> bytes:
    """Another word in place of a text between quotes."""
    found = list(re.finditer(rb'"[^"\n]{0,60}"', content))
    if not found:
        return _noise(content, draw)
    place, other = draw.choice(found), draw.choice(found)[0]
    word = draw.choice((other, b'"../../x"', b'"\\ud800"', b"1", b"[]", b"{}", b'"[/b]\\u001b"'))
    return content[: place.start()] + word + content[place.end() :]


def _lines(content: bytes, draw: random.Random) -> bytes:
    return content.replace(b"\n", b"\r\n")


MUTATIONS = (_flip, _cut, _remove, _double, _noise, _insert, _number, _binary_number, _text, _lines)


def damage(path: Path, draw: random.Random) -> None:
    """Damage a file; half of the time in a way that checksums do not reveal."""
    content = path.read_bytes()
    if draw.random() < 0.5:
        path.write_bytes(mutate(content, draw))
    elif zipfile.is_zipfile(path):
        path.write_bytes(_in_archive(content, draw))
    elif path.name[0].isdecimal() and path.suffix == ".json":  # a manifest
        body = mutate(content.split(b"\n")[0], draw)
        path.write_bytes(body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n")
    else:
        path.write_bytes(mutate(content, draw))
        if path.suffix == ".safetensors":
            _note_checksum(path)


def _in_archive(content: bytes, draw: random.Random) -> bytes:
    """Mutate a member of a zip archive and pack it again."""
    new = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(new, "w") as packed:
        members = old.infolist()
        victim = draw.randrange(len(members))
        for n, member in enumerate(members):
            data = old.read(member)
            packed.writestr(
                draw.choice((member.filename, "../x.npy")) if n == victim else member.filename,
                mutate(data, draw) if n == victim else data,
                member.compress_type,
            )
    return new.getvalue()


def _note_checksum(segment: Path) -> None:
    """Let the manifests beside a segment expect what it holds now."""
    for path in segment.parent.glob("[0-9]*.json"):
        manifest = json.loads(path.read_text(encoding="utf-8").split("\n")[0])
        if segment.name in manifest["sums"]:
            manifest["sums"][segment.name] = hashlib.sha256(segment.read_bytes()).hexdigest()
            body = json.dumps(manifest)
            path.write_text(f"{body}\n{hashlib.sha256(body.encode()).hexdigest()}\n")


def _resident() -> int:
    """The peak of the resident memory since it was last reset, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+)", status)
    return 1024 * int(found[1]) if found else 0


def _reset_peak() -> int:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _resident()


def outcome(name: str, folder: Path) -> tuple[str, str]:
    """What becomes of a damaged file: read, refused or worse, and the details."""

    def ring(number: int, frame: object) -> None:
        raise Hang

    before = _reset_peak()
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            FORMATS[name].read(folder)
        end, details = "read", ""
    except (UsageError, RunError) as error:
        end, details = ("refused", str(error)) if str(error) else ("traceback", "no message")
    except MemoryError:
        end, details = "over memory", traceback.format_exc()
    except Hang:
        end, details = "hang", traceback.format_exc()
    except Exception:
        end, details = "traceback", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if _resident() - before > MEMORY:
        end, details = "over memory", f"{end}: {details}"
    return end, details


def _case(number: int, seed: int, made: Path) -> tuple[str, str, str]:
    draw = random.Random(f"{seed} {number}")
    name = draw.choice(list(FORMATS))
    with tempfile.TemporaryDirectory(dir=made) as scratch:
        folder = Path(scratch) / "files"
        shutil.copytree(made / name, folder)
        files = sorted(path for pattern in FORMATS[name].files for path in folder.glob(pattern))
        damage(draw.choice(files), draw)
        before = os.listdir(made), os.listdir(scratch)
        end, details = outcome(name, folder)
        if before != (os.listdir(made), os.listdir(scratch)):
            end, details = "traceback", f"files were written outside of the folder; {details}"
        return name, end, details


def _batch(numbers: Sequence[int], seed: int, made: Path, out: int) -> None:
    """Run cases in this process, which ends with them; a line of JSON for each."""
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual + 2 * MEMORY, resource.RLIM_INFINITY))
    with os.fdopen(out, "w", encoding="utf-8") as file:
        for number in numbers:
            file.write(json.dumps([number, *_case(number, seed, made)]) + "\n")
            file.flush()


def _results(count: int, seed: int, made: Path) -> Iterator[list[Any]]:
    """Number, format, end and details of every case; a process that dies is replaced."""
    done = 0
    while done < count:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            try:
                _batch(range(done, min(count, done + BATCH)), seed, made, writing)
            finally:
                os._exit(0)
        os.close(writing)
        first = done
        with os.fdopen(reading, encoding="utf-8") as lines:
            while select.select([lines], [], [], 2 * SECONDS)[0]:
                line = lines.readline()
                if not line:
                    break
                yield json.loads(line)
                done += 1
            else:
                os.kill(child, signal.SIGKILL)
                yield [done, "?", "hang", "the process did not answer"]
                done += 1
        os.waitpid(child, 0)
        if done < min(count, first + BATCH) and line == "":
            yield [done, "?", "traceback", "the process died"]
            done += 1


def fuzz(count: int, seed: int = 0) -> tuple[dict[str, Counter[str]], list[str]]:
    """Format -> how many of its cases ended how, and what went wrong."""
    counts: dict[str, Counter[str]] = {}
    wrong = []
    with tempfile.TemporaryDirectory(prefix="wima-fuzz-") as folder:
        made = Path(folder)
        for name, kind in FORMATS.items():
            (made / name).mkdir()
            with contextlib.redirect_stdout(io.StringIO()):
                kind.make(made / name)
                kind.read(made / name)  # here, so that no child has to import
        for number, name, end, details in _results(count, seed, made):
            counts.setdefault(name, Counter())[end] += 1
            if end in BAD:
                wrong.append(f"case {number} ({name}): {end}\n{details}")
    return counts, wrong


def main(count: int, seed: int) -> int:
    """Print a table, and what went wrong; returns the exit code."""
    counts, wrong = fuzz(count, seed)
    ends = ("read", "refused", *BAD)
    for line in wrong:
        print(line)
    print(f"{'':<14}" + "".join(f"{end:>13}" for end in ends))
    for name in sorted(counts):
        print(f"{name:<14}" + "".join(f"{counts[name][end]:>13,}" for end in ends))
    total = sum(counts.values(), Counter[str]())
    print(f"{'all':<14}" + "".join(f"{total[end]:>13,}" for end in ends))
    return 1 if wrong else 0

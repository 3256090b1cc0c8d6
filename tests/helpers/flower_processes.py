"""Flower's own programs as processes of a test, with certificates and keys; always ended."""

from __future__ import annotations

import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.helpers.commands import environment

BIN = Path(sys.executable).parent
PEM, NO_PASSWORD = serialization.Encoding.PEM, serialization.NoEncryption()
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}


class Programs:
    """Programs with a Flower home of their own; leaving the block ends them and their children."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        self.environment = environment(**QUIET, PATH=path, FLWR_HOME=str(folder / "home"))
        self._started: list[subprocess.Popen] = []

    def __enter__(self) -> Programs:
        (self.folder / "home").mkdir()
        return self

    def start(self, name: str, *command: str) -> subprocess.Popen:
        """A program that runs beside the test; what it prints goes to `name`.log."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, env=self.environment, cwd=self.folder
            )
        self._started.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def logs(self) -> str:
        """The ends of all logs, for a test that fails."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {f.stem}\n{self.log(f.stem)[-3000:]}" for f in files)

    def connect(self, port: int, *lines: str) -> None:
        """Let `flwr` find the SuperLink on this port."""
        text = f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{port}"\n'
        (self.folder / "home" / "config.toml").write_text(text + "\n".join(lines) + "\n")

    def wait_for(self, fact: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not fact():
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not in {seconds:g} s\n{self.logs()}")
            for process in self._started:
                process.poll()  # children watch whether their parent is gone, not a zombie
            time.sleep(0.1)

    def __exit__(self, *exception: object) -> None:
        family = [pid for process in self._started for pid in descendants(process.pid)]
        for process in self._started:
            process.terminate()
        end = time.monotonic() + 5
        while time.monotonic() < end and any(p.poll() is None for p in self._started):
            time.sleep(0.05)
        for process in self._started:
            process.kill()
            process.wait()
        for pid in family:
            kill(pid)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found, todo = [], [pid]
    while todo:
        above = todo.pop()
        children = [child for child, parent in parents.items() if parent == above]
        found += children
        todo += children
    return found


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def write_certificates(folder: Path) -> None:
    """ca.pem, server.pem and server.key for 127.0.0.1, and other-ca.pem that signed neither."""
    for name in ("ca", "other-ca"):
        key = ec.generate_private_key(ec.SECP384R1())
        certificate = _certificate(name, key, name, key, authority=True)
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(PEM))
        if name == "ca":
            authority = key
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = _certificate("localhost", key, "ca", authority, authority=False)
    (folder / "server.pem").write_bytes(certificate.public_bytes(PEM))
    private = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_PASSWORD)
    (folder / "server.key").write_bytes(private)


def _certificate(name, key, issuer, issuer_key, *, authority: bool) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (name, issuer)]
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    usage = dict.fromkeys(
        ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement"], False
    )
    usage |= {"digital_signature": True, "key_cert_sign": authority, "crl_sign": authority}
    builder = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(authority, None), critical=True)
        .add_extension(
            x509.KeyUsage(**usage, encipher_only=False, decipher_only=False), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), address]), critical=False
        )
    )
    return builder.sign(issuer_key, hashes.SHA384())


def write_key(folder: Path, name: str) -> None:
    """A node's private key, and `name`.pub for the server."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, NO_PASSWORD)
    (folder / name).write_bytes(private)
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    (folder / f"{name}.pub").write_bytes(public)

"""Processes that start in a tenth of a second: forks of one that has imported torch and wima.

`Popen` takes the place of `subprocess.Popen` in tests (see conftest.py). What starts `python -m
wima ...` or a worker of ours gets a fork of this process's zygote, with its own arguments, folder,
environment, standard streams, passed descriptors, signal mask and ignored signals; everything else,
and everything inside `cold()`, is started as ever. A fork differs from a real start in what it need
not import and in the seed of its hashes. The zygote has one thread and computes nothing itself.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REAL = subprocess.Popen
ROOT = Path(__file__).parents[2]
LIMIT = 60  # seconds until the zygote must have imported everything, or started a process
# Not imported beforehand: other people's frameworks, and what `python -m` runs as a script.
LEFT_OUT = ("wima.flower", "wima.training.callbacks", "wima.__main__")
_cold, _address = False, ""


@contextlib.contextmanager
def cold() -> Iterator[None]:
    """Start processes for real."""
    global _cold
    before, _cold = _cold, True
    try:
        yield
    finally:
        _cold = before


def is_ours(command: Any) -> bool:
    if not isinstance(command, list | tuple) or len(command) < 3 or command[0] != sys.executable:
        return False
    if command[1] == "-m":
        return command[2] == "wima" or command[2].startswith("wima.")
    return command[1] == "-c" and "import_module(sys.argv[2]).main()" in command[2]


def address() -> str:
    """Where the zygote of this process and of its children listens."""
    global _address
    if not _address:
        _address = _started()
    return _address


def _started() -> str:
    # Not where a test wants temporary files: the path of a socket has at most 107 characters.
    folder = tempfile.mkdtemp(prefix="wima-zygote-", dir="/tmp")
    path = f"{folder}/socket"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.helpers.zygote", path]
    # Its input is open as long as this process lives. A session of its own: Ctrl-C is not for it.
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    zygote = REAL(command, cwd=ROOT, env=environment, **pipes)
    atexit.register(_end, zygote, folder, os.getpid())
    assert zygote.stdout is not None and zygote.stdout.readline() == b"ready\n"
    return path


def _end(zygote: Any, folder: str, owner: int) -> None:
    if os.getpid() == owner:
        zygote.stdin.close()
        zygote.stdout.close()
        zygote.wait()
        shutil.rmtree(folder, ignore_errors=True)


class Popen(REAL):
    """`subprocess.Popen`, but ours are forks of the zygote."""

    _line: socket.socket | None = None  # from which the exit status of a fork comes

    def _execute_child(  # the parameters of subprocess.Popen._execute_child
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        *rest: Any,
    ) -> None:
        if _cold or shell or executable or preexec_fn or not is_ours(args):
            given = (args, executable, preexec_fn, close_fds, pass_fds, cwd, env)
            super()._execute_child(*given, startupinfo, creationflags, shell, *rest)
            return
        pipes, new_session = rest[:6], rest[11]
        wanted = enumerate((pipes[0], pipes[3], pipes[5]))  # -1: the caller's
        streams = [number if given == -1 else given for number, given in wanted]
        ignored = [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
        request = {
            "args": [os.fspath(a) for a in args],
            "cwd": os.path.join(os.getcwd(), cwd or ""),
            "env": dict(os.environ if env is None else env),
            "fds": [0, 1, 2, *pass_fds],
            "new_session": bool(new_session),
            "ignored": [int(n) for n in ignored],
            "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        }
        content = json.dumps(request).encode()
        self._line = socket.socket(socket.AF_UNIX)
        self._line.settimeout(LIMIT)
        self._line.connect(address())
        socket.send_fds(self._line, [len(content).to_bytes(8, "little")], [*streams, *pass_fds])
        self._line.sendall(content)
        self.pid = int.from_bytes(_exactly(self._line, 4), "little")
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._line is None:
            return super()._try_wait(wait_flags)
        self._line.settimeout(0 if wait_flags & os.WNOHANG else None)
        try:
            status = self._line.recv(4)
        except BlockingIOError:
            return 0, 0
        self._line.close()
        return self.pid, int.from_bytes(status, "little")

    def _internal_poll(self, *args: Any, **options: Any) -> int | None:
        if self._line is None:
            return super()._internal_poll(*args, **options)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def _exactly(line: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise ConnectionError("the zygote or its reader is gone")
        data += part
    return data


# The zygote.


def import_all() -> None:
    import torch

    import wima

    torch.set_num_threads(1)
    for module in pkgutil.walk_packages(wima.__path__, "wima.", onerror=lambda name: None):
        if not module.name.startswith(LEFT_OUT):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    subprocess.Popen = Popen  # forks start forks


def serve(path: str) -> dict[str, Any]:
    """Fork for each request; returns in the forks only, with the request."""
    global _address
    listener, _address = socket.socket(socket.AF_UNIX), path  # forks ask it for their own children
    listener.bind(path)
    listener.listen(64)
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    lines: dict[int, socket.socket] = {}  # of the forks that run
    selector = selectors.DefaultSelector()
    for source in (sys.stdin, listener, reading):
        selector.register(source, selectors.EVENT_READ)
    gc.freeze()  # so that forks do not copy what they collect
    print("ready", flush=True)
    while True:
        ready = [key.fileobj for key, _ in selector.select()]
        if sys.stdin in ready:  # the process that started this one has ended
            os._exit(0)
        if listener in ready:
            line, _ = listener.accept()
            try:
                request, descriptors = _received(line)
            except ConnectionError:
                line.close()
                continue
            for name in _wanted(request["args"]):
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            # A fork gets its signals when it has become what was asked for.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                selector.close()
                for end in (listener, reading, writing, line, *lines.values()):
                    end.close()
                _become(request, descriptors)
                return request
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for descriptor in descriptors:
                os.close(descriptor)
            lines[pid] = line
            with contextlib.suppress(OSError):
                line.sendall(pid.to_bytes(4, "little"))
        if reading in ready:
            reading.recv(4096)
        while lines:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with contextlib.suppress(OSError):  # whoever started it has ended
                lines[pid].sendall(status.to_bytes(4, "little"))
            lines.pop(pid).close()


def _wanted(args: list[str]) -> list[str]:
    """What the zygote imports once, when it is first asked for."""
    return [args[4]] if args[1] == "-c" and args[4].startswith("wima.flower") else []


def _received(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    line.settimeout(LIMIT)
    size, descriptors, _, _ = socket.recv_fds(line, 8, 64)
    content = _exactly(line, int.from_bytes(size, "little"))
    return json.loads(content), list(descriptors)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Make this fork what the request asks for."""
    aside = [fcntl.fcntl(fd, fcntl.F_DUPFD, 500) for fd in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for fd, target in zip(aside, request["fds"], strict=True):
        os.dup2(fd, target)  # inheritable, as the real thing
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["new_session"]:
        os.setsid()
    for number in signal.valid_signals():
        if number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ):
            continue  # Python ignores the last two itself
        ignored = int(number) in request["ignored"]
        with contextlib.suppress(OSError, ValueError):  # some belong to the C library
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
    if signal.SIGINT not in request["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = sys.__stdin__ = _stream(0, "r")
    sys.stdout = sys.__stdout__ = _stream(1, "w")
    sys.stderr = sys.__stderr__ = _stream(2, "w", errors="backslashreplace")
    sys.path[0] = "" if request["args"][1] == "-c" else os.getcwd()
    own = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [folder for folder in own if folder and folder not in sys.path]
    importlib.invalidate_caches()
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])


def _stream(fd: int, mode: str, errors: str = "strict") -> io.TextIOWrapper:
    at_once = mode == "w" and (fd == 2 or os.isatty(fd))
    raw = open(fd, f"{mode}b", closefd=False)  # noqa: SIM115  (open as long as the process)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, line_buffering=at_once)


def run(args: list[str]) -> int:
    """What the interpreter does with its arguments; the exit code."""
    sys.argv = [args[1], *args[3:]]
    try:
        if args[1] == "-m":
            sys.modules.pop(args[2], None) if args[2] != "wima" else None
            runpy.run_module(args[2], run_name="__main__", alter_sys=True)
        else:
            exec(args[2], {"__name__": "__main__", "__builtins__": __builtins__})
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        if isinstance(error, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    return 1


def main() -> None:
    # As a module with a name of its own: what runs in a fork is `__main__`.
    from tests.helpers import zygote

    zygote.import_all()
    code = zygote.run(zygote.serve(sys.argv[1])["args"])
    # The end of an interpreter, without taking apart every module.
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()

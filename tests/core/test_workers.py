"""Messages to worker processes and back, and how workers end."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from wima.core.errors import UsageError
from wima.core.workers import Exited, Worker, end, pickled


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker("tests.helpers.echo", quiet=True)
    yield worker
    end([worker], patience=0)


def test_headers_and_parts_come_back_as_they_were_sent(worker):
    # As large as a model: many times what a pipe holds.
    parts = (b"", b"a\nb", os.urandom(1_000_000))
    for sent in ((), parts, (), parts[:1]):
        worker.send({"client": 3, "text": "\n"}, *sent)
        ((header, received),) = worker.receive()
        assert header == {"client": 3, "text": "\n", "pid": worker.process.pid}
        assert tuple(received) == sent


def test_all_messages_that_have_arrived_are_received(worker):
    worker.send({"times": 50}, b"part")
    received = []
    while len(received) < 50:
        received += worker.receive()
    assert all(message.parts == [b"part"] for message in received)


def test_a_selector_waits_for_a_worker(worker):
    with selectors.DefaultSelector() as selector:
        selector.register(worker, selectors.EVENT_READ)
        assert not selector.select(0)
        worker.send({})
        assert selector.select(60)
    assert len(worker.receive()) == 1


def test_how_a_worker_exited_is_said(worker):
    worker.send({"exit": 3})
    with pytest.raises(Exited, match=rf"\(pid {worker.process.pid}\) exited with code 3\."):
        worker.receive()
    with pytest.raises(Exited, match=r"exited with code 3\."):
        worker.send({})


def test_a_killed_worker_is_named_with_the_signal(worker):
    os.kill(worker.process.pid, signal.SIGKILL)
    with pytest.raises(Exited, match=r"was killed by signal 9\."):
        worker.receive()


def test_workers_exit_when_they_are_ended_and_busy_ones_are_killed(worker):
    worker.send({})
    worker.receive()
    end([worker])
    assert worker.process.returncode == 0
    busy = Worker("tests.helpers.echo", quiet=True)
    busy.send({})
    busy.receive()
    busy.send({"sleep": 60})
    begin = time.monotonic()
    end([busy])
    assert busy.process.returncode == -signal.SIGKILL and time.monotonic() - begin < 30


def test_only_an_independent_worker_receives_signals(worker):
    independent = Worker("tests.helpers.echo", independent=True, quiet=True)
    for one in (worker, independent):
        one.send({})
        one.receive()
        one.process.send_signal(signal.SIGTERM)
    with pytest.raises(Exited, match="killed by signal 15"):
        independent.receive()
    end([independent])
    worker.send({})
    assert len(worker.receive()) == 1


def test_what_cannot_be_pickled_is_refused_with_the_reason():
    assert b"Worker" in pickled(Worker, "refused: {}")
    with pytest.raises(UsageError, match=r"refused: .*lock"):
        pickled(threading.Lock(), "refused: {}")

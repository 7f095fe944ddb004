"""Which machines answer a call, with sockets that do and others that don't."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from reknit.runtime.communicator.probe import Probes


@pytest.fixture
def deaf() -> Iterator[tuple[str, int]]:
    """A socket that accepts nobody and whose queue is full: the kernel lets further calls go unanswered."""
    calls = [socket.socket() for _ in range(8)]
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        for call in calls:
            call.setblocking(False)
            call.connect_ex(listener.getsockname())
        yield listener.getsockname()
    for call in calls:
        call.close()


def test_a_machine_answers_if_somebody_listens_there_or_nobody_does(deaf: tuple[str, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = nobody.getsockname()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        probes = Probes({0: listener.getsockname(), 1: closed, 2: deaf})
        try:
            deadline = time.monotonic() + 5
            while probes.unanswered() != {2}:
                assert time.monotonic() < deadline
            assert probes.unanswered() == {2}
        finally:
            probes.close()

"""The record of a worker that has just attached."""

from __future__ import annotations

import pytest

from reknit.runtime.fleet import new_member
from reknit.runtime.ipc.server import Peer


@pytest.mark.parametrize(
    ("told", "own", "reached"),
    [
        ("127.0.0.1:5000", "127.0.0.1", "127.0.0.1:5000"),
        ("127.0.0.1:5000", "10.0.0.7", "10.0.0.7:5000"),
        ("127.0.0.1:5000", "fd00::7", "[fd00::7]:5000"),
        ("10.0.0.8:5000", "10.0.0.7", "10.0.0.8:5000"),
    ],
)
def test_a_worker_that_does_not_know_its_hosts_address_is_reached_at_its_agents(
    told: str, own: str, reached: str
) -> None:
    peer = Peer(1, "w0", "abc", 4242, 0, {"address": told})
    assert new_member(peer, "a", "host", own, 0).address == reached

"""Whether an agent is well and ready, as its probes say it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.desk import Desk, peer

from reknit.rendezvous.session.session import Session
from reknit.runtime.ipc.server import PeerEvent
from reknit.runtime.probes import STUCK_SECONDS, Probes


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.log.close()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session has a lease, and has written everything."""
    monkeypatch.setattr(Session, "sure", lambda self, now: True)
    monkeypatch.setattr(Session, "written", property(lambda self: True))


def turned(desk: Desk) -> Probes:
    desk.agent.probes.turn(time.monotonic())
    return desk.agent.probes


def test_an_agent_that_waits_for_etcd_is_well_but_not_ready(desk: Desk) -> None:
    probes = desk.agent.probes
    assert probes.healthy() == (True, "starting")
    assert probes.ready() == (False, "starting: not registered in etcd yet")


def test_a_loop_that_is_stuck_is_not_well(desk: Desk) -> None:
    desk.agent.probes.turn(time.monotonic() - STUCK_SECONDS - 10)
    well, why = desk.agent.probes.healthy()
    assert not well
    assert "stuck for 25 s" in why
    assert turned(desk).healthy() == (True, "ok")


def test_ready_needs_a_lease_and_all_records(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.attach(peer("w0"))
    assert turned(desk).ready() == (False, "not registered in etcd: it has no lease there")
    monkeypatch.setattr(Session, "sure", lambda self, now: True)
    monkeypatch.setattr(Session, "written", property(lambda self: False))
    assert turned(desk).ready() == (False, "not registered in etcd yet")
    monkeypatch.setattr(Session, "written", property(lambda self: True))
    assert turned(desk).ready() == (True, "ok")
    monkeypatch.setattr(Session, "written", property(lambda self: False))  # a record is on its way
    assert turned(desk).ready() == (True, "ok")


@pytest.mark.usefixtures("registered")
def test_ready_needs_the_workers(desk: Desk) -> None:
    assert turned(desk).ready() == (False, "no worker has come to this agent's socket yet")
    for number in range(6):
        desk.attach(peer(f"w{number}", number))
    assert turned(desk).ready() == (True, "ok")
    for number in range(5):
        desk.agent.take(PeerEvent("closed", peer(f"w{number}", number)))
    assert turned(desk).ready() == (False, "not attached: w0, w1, w2 and 2 more")


@pytest.mark.usefixtures("registered")
def test_an_agent_that_leaves_is_not_ready(desk: Desk) -> None:
    desk.attach(peer("w0"))
    desk.agent.station.draining = "SIGTERM to this agent"
    assert turned(desk).ready() == (False, "its workers leave the job: SIGTERM to this agent")
    desk.agent.station.end(1, "all is lost")
    assert turned(desk).ready() == (False, "ending: all is lost")


def test_the_pages_tell_what_the_probes_say(desk: Desk) -> None:
    def start(status: str, _: object) -> None:
        said.append(status)

    said: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/readyz"}
    assert list(desk.agent.serving.pages(environ, start)) == [b"starting: not registered in etcd yet\n"]  # type: ignore[arg-type]
    assert said == ["503 Service Unavailable"]

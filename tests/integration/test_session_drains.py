"""A session hears of the orders to its workers, and reads the whole job, on the store in memory."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reknit.rendezvous.accusation import AgentRecord
from reknit.rendezvous.draining import DrainOrder, encode_order
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import encode
from reknit.rendezvous.records import Member, Name, Place, Plan, Replica
from reknit.rendezvous.session.candidacy import Timing
from reknit.rendezvous.session.events import DrainAsked, JobRead
from reknit.rendezvous.session.session import Session
from reknit.rendezvous.store.memory import MemoryStore

KEYS = Keys("job")
MEMBER = Member("w1", "i1", "agent", "host", "127.0.0.1:5001", coordinate=0)


class Desk:
    """One session, and what it told."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.session = Session(self.store, "job", "agent", self._told.put, Timing(ttl=3.0, retry=0.05, operation=1.0))
        self.session.set_agent(AgentRecord("agent", "host", os.getpid()))
        self.session.start()
        self.session.set_member(MEMBER)

    def next(self, kind: type) -> Any:
        """The next event of a kind; fails with queue.Empty after 10 s."""
        while True:
            event = self._told.get(timeout=10.0)
            if isinstance(event, kind):
                return event


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.session.close()
    desk.store.close()


def test_an_order_to_a_worker_of_this_agent_is_told_and_one_that_does_not_fit_is_skipped(desk: Desk) -> None:
    order = DrainOrder(Name("w1", "i1"), 5.0, "somebody")
    desk.store.put(KEYS.drain("w1"), b"{")
    desk.store.put(KEYS.drain("w2"), encode_order(order))
    desk.store.put(KEYS.drain("w1"), encode_order(order))
    assert desk.next(DrainAsked).order == order


def test_the_job_is_read_with_its_newest_plan_and_its_members(desk: Desk, wait_until: Callable[..., None]) -> None:
    wait_until(lambda: desk.session.written)
    desk.session.request_job()
    assert desk.next(JobRead) == JobRead(None, (MEMBER,))
    place = Place(MEMBER.name, "host", MEMBER.address, 1, "agent")
    plan = Plan(4, "why", replicas=(Replica(0, 1, (place,)),), placed=4, writer=7)
    head, parts = encode(plan)
    for key, value in parts.items():
        desk.store.put(KEYS.prefix + key, value)
    desk.store.put(KEYS.head, head)

    def read() -> bool:
        desk.session.request_job()
        found: JobRead = desk.next(JobRead)
        return found.plan == plan

    wait_until(read)

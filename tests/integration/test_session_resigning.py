"""A leader whose code raises at every look makes way: another agent leads, and plans."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from reknit.rendezvous.codec import encode_spec
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.leader.leader import Leader
from reknit.rendezvous.leader.resigning import FAILURES
from reknit.rendezvous.leader.term import Term
from reknit.rendezvous.parts import decode_head
from reknit.rendezvous.plan import Patience
from reknit.rendezvous.records import Axes, Member, Name, Plan, Spec
from reknit.rendezvous.session.candidacy import Timing
from reknit.rendezvous.session.events import Deposed, Elected, SessionEvent
from reknit.rendezvous.session.session import Session
from reknit.rendezvous.store.memory import MemoryStore

JOB = "job"
KEYS = Keys(JOB)


class FailingLeader(Leader):
    """A leader with a mistake that shows as soon as it decides anything, for as long as `broken`."""

    broken = True
    failures = 0

    def _begin(self, revision: int) -> Term:
        term = super()._begin(revision)
        act = term.accusations.act

        def fail(previous: Plan) -> dict[Name, str]:
            if not self.broken:
                return act(previous)
            self.failures += 1
            raise ZeroDivisionError("a mistake of ours")

        term.accusations.act = fail  # type: ignore[method-assign]
        return term


class Agent:
    """A session and a leader, tied together as the agent does it."""

    def __init__(self, store: MemoryStore, name: str, kind: type[Leader]) -> None:
        self.offices: list[int] = []
        self.session = Session(store, JOB, name, self._take, Timing(ttl=3.0, retry=0.05, operation=1.0))
        self.leader = kind(store, JOB, self.session, patience=Patience(join_window=0.0), detect=3.0, operation=1.0)
        self.leader.start()
        self.session.start()

    def _take(self, event: SessionEvent) -> None:
        if isinstance(event, Elected):
            self.offices.append(event.revision)
            self.leader.lead(event.revision)
        elif isinstance(event, Deposed):
            self.leader.follow()

    def close(self) -> None:
        self.leader.close()
        self.session.close()


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore()
    store.put(KEYS.spec, encode_spec(Spec(Axes(), 1, 2)))
    yield store
    store.close()


def declare(agent: Agent) -> None:
    agent.session.set_member(Member("w0", "i", "bad", "host", "127.0.0.1:5000", coordinate=0, built=True))


def test_an_agent_that_fails_at_leading_leaves_it_to_another(
    store: MemoryStore, wait_until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="reknit.rendezvous.leader.leader")
    bad = Agent(store, "bad", FailingLeader)
    good: Agent | None = None
    try:
        wait_until(lambda: bad.offices)
        good = Agent(store, "good", Leader)
        declare(bad)
        wait_until(lambda: store.get(KEYS.head), what="a plan")
        entry = store.get(KEYS.head)
        assert entry is not None
        assert decode_head(entry.value, entry.key).writer == good.offices[-1]
        assert good.session.leader == "good"
        assert isinstance(bad.leader, FailingLeader)
        assert bad.leader.failures == FAILURES, "it is asked no more"
    finally:
        for agent in (bad, good):
            if agent is not None:
                agent.close()


def test_an_agent_that_is_alone_tries_again_and_leads_once_it_can(
    store: MemoryStore, wait_until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="reknit.rendezvous.leader.leader")
    alone = Agent(store, "alone", FailingLeader)
    try:
        declare(alone)
        wait_until(lambda: store.get(KEYS.leader) is None and alone.offices, what="its resignation")
        assert isinstance(alone.leader, FailingLeader)
        alone.leader.broken = False
        wait_until(lambda: store.get(KEYS.head), what="a plan")
        assert len(alone.offices) == 2
    finally:
        alone.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "leader"]

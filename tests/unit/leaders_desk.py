"""A leader's term at its desk: a store in memory, and a clock of the test's choice."""

from __future__ import annotations

import logging
import math
from typing import Any

from reknit.rendezvous.codec import encode_member, encode_spec
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.leader.judging import Judge
from reknit.rendezvous.leader.publisher import Publisher
from reknit.rendezvous.leader.term import Known, Term
from reknit.rendezvous.parts import Head
from reknit.rendezvous.plan import Patience
from reknit.rendezvous.records import Member, Plan, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Lease

KEYS = Keys("job")


class Tenure:
    def __init__(self) -> None:
        self.deadline = math.inf
        self.settled = 0.0

    def sure(self, now: float) -> bool:
        return now < self.deadline

    def settles(self, now: float) -> float:
        return self.settled


class Desk:
    """A term with its store, and the members that a test puts there."""

    def __init__(self, spec: Spec, judge: Judge | None = None, store: MemoryStore | None = None) -> None:
        self.store = store if store is not None else MemoryStore()
        self.leases: dict[str, Lease] = {}
        self.lease = self.lease_of("agent")
        self.tenure = Tenure()
        self.judge = judge
        self.store.put(KEYS.spec, encode_spec(spec))
        self.begin()

    def lease_of(self, agent: str) -> Lease:
        """The lease on which an agent's records hang."""
        if agent not in self.leases:
            self.leases[agent] = self.store.grant(3600)
        return self.leases[agent]

    def begin(self, known: Known | None = None, seen: Head | None = None, plan: Plan | None = None) -> None:
        """A new leader's term; its agent is called "me"."""
        self.rejected = rejected = Rejected(logging.getLogger("test"))
        self.store.delete(KEYS.leader)
        revision = self.store.put(KEYS.leader, b"me", lease=self.lease_of("me"))
        publisher = Publisher(self.store, KEYS, revision, rejected, 1.0)
        publisher.remember(seen, plan)
        self.term = Term(publisher, rejected, self.tenure, Patience(), 5.0, known, self.judge)

    def hear(self, now: float) -> None:
        """Tell the leader, as its watches do, what stands in the store."""
        self.term.roster.take(self.store.list(KEYS.members), now)
        self.term.assignments.take(self.store.list(KEYS.assignments), now)
        self.term.accusations.take(self.store.list(KEYS.accusations), now)
        self.term.standing_spec.take(self.store.list(KEYS.spec), now)

    def look(self, now: float, *members: Member) -> int:
        """Look at these members at this time, as often as the leader does; return the newest generation."""
        self.write(*members)
        self.go(now)
        return self.term.publisher.plan.generation if self.term.publisher.plan else 0

    def go(self, now: float) -> None:
        """Look at what stands in the store, as often as the leader does."""
        for _ in range(3):
            self.hear(now)
            self.term.look(now)

    def write(self, *members: Member) -> None:
        """Let the store hold these members' records, and no others; what does not change is not written."""
        wanted = {KEYS.member(m.worker_id): encode_member(m) for m in members}
        agents = {KEYS.member(m.worker_id): m.agent for m in members}
        standing = {entry.key: entry.value for entry in self.store.list(KEYS.members).entries}
        for key in standing.keys() - wanted.keys():
            self.store.delete(key)
        for key, value in wanted.items():
            if standing.get(key) != value:
                self.store.put(key, value, lease=self.lease_of(agents[key]))

    def wipe(self) -> None:
        """The store loses everything, leases too."""
        self.store.wipe()
        self.leases.clear()
        self.lease = self.lease_of("agent")

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        assert self.term.publisher.plan is not None
        return self.term.publisher.plan


def member(number: int, **known: Any) -> Member:
    """Worker w<number>, which has built its model for coordinate 0, unless something else is said."""
    fields: dict[str, Any] = {"incarnation": "i", "agent": "agent", "coordinate": 0, "built": True, **known}
    return Member(worker_id=f"w{number}", host="host", address=f"127.0.0.1:{5000 + number}", **fields)


ALL = tuple(member(number) for number in range(3))

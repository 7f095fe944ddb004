"""Who leads, as a pure decision over what is known of the leader key and of one's own lease.

The key `leader` is created, lease-bound, by the one agent whose transaction finds it absent; the revision of its
creation is the fence under which everything of that term of office is written.  `Contact` says how far the own lease,
and the records of everybody else, can be trusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

from reknit.rendezvous.store.protocol import Entry, Lease

RENEWALS = 3  # a lease is renewed so many times in its time to live
RETURN = 1.0  # seconds beyond one renewal in which an agent whose lease ended in an outage has written its records anew


class Role(Enum):
    """What to do about the leader key."""

    CAMPAIGN = "campaign"
    HOLD = "hold"
    FOLLOW = "follow"
    CLEAR = "clear"  # the key hangs on no lease, so it would stand forever: delete it


@dataclass(frozen=True)
class Decision:
    """The role and why; `revision` is the fence (0 unless the role is HOLD)."""

    role: Role
    reason: str
    revision: int = 0


@dataclass(frozen=True)
class Contact:
    """The store as the renewals of the own lease show it.  Times are monotonic seconds.

    `renewed`: when the last successful renewal (or the grant) was asked for, so that the lease surely stands until
    `deadline`.  `settled`: not before this time does a missing record mean that its worker is gone: in an outage of
    the store all leases end together, and every agent that lives writes its records anew.
    """

    ttl: float
    renewed: float
    settled: float = 0.0

    @property
    def deadline(self) -> float:
        """Until when the lease surely stands."""
        return self.renewed + self.ttl

    def sure(self, now: float) -> bool:
        """Whether the lease surely stands."""
        return now < self.deadline

    def settles(self, now: float) -> float:
        """When missing records may be taken for losses: a time that has passed, one to come, or infinity (unknown)."""
        return math.inf if self._long(now) else self.settled

    def renew(self, asked: float, now: float, ttl: float) -> Contact:
        """The contact after a renewal, or a new grant, that was asked for at `asked` and answered at `now`."""
        settled = now + ttl / RENEWALS + RETURN if self._long(now) else self.settled
        return replace(self, ttl=ttl, renewed=asked, settled=settled)

    def end(self, now: float) -> Contact:
        """The contact after the store turned out to know the lease no longer.

        If it has lost everything, so has everybody, and others may find out only when they renew.
        """
        return replace(self, settled=max(self.settled, now + self.ttl / RENEWALS + RETURN))

    def _long(self, now: float) -> bool:
        # everybody renewed at most one renewal before the outage began: no lease can have ended sooner than this
        return now - self.renewed >= self.ttl * (1 - 1 / RENEWALS)


def decide(leader: Entry | None, known: bool, lease: Lease | None, contact: Contact | None, now: float) -> Decision:
    """What to do about the leader key.  `known`: whether its state has been seen; `lease`, `contact`: one's own."""
    if lease is None or contact is None:
        return Decision(Role.FOLLOW, "this agent has no lease")
    if not contact.sure(now):
        late = now - contact.renewed
        return Decision(Role.FOLLOW, f"the lease may have ended: it was last renewed {late:.1f} s ago")
    if not known:
        return Decision(Role.FOLLOW, "the leader key has not been seen yet")
    if leader is None:
        return Decision(Role.CAMPAIGN, "nobody leads")
    if leader.lease == 0:
        return Decision(Role.CLEAR, "the leader key hangs on no lease: no agent wrote it")
    if leader.lease != lease.id:
        return Decision(Role.FOLLOW, f"{leader.value.decode(errors='replace'):.80} leads")
    return Decision(Role.HOLD, "this agent leads", leader.create_revision)

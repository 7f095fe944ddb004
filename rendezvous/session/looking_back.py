"""How an agent finds out, before its session starts, whether the run that the plan belongs to is over.

`earlier` says what follows from what stands in the store.  But that may be behind the truth both ways:

* Records outlive their agents by up to a lease.  So those of that run are watched: an agent that lives renews its
  lease, or writes; what nobody renews is waited out.  One sign of life is enough, and comes within a renewal or two.
* Workers outlive their records if their hosts are cut off from the store: they train on.  So those who have a place in
  the plan are called.  Workers whose agent was killed live on for a lease, so who answers must go on to do so.

A store whose own leader changes meanwhile gives all leases their full time again: then the dead seem to live, and the
run to go on.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from reknit.rendezvous.codec import decode_member
from reknit.rendezvous.earlier import earlier_generation, has_run
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import Head, Peer, decode_head, decode_peers, parts_prefix
from reknit.rendezvous.records import FINISHED, LOST, Member
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.calling import somebody_answers
from reknit.rendezvous.session.election import RETURN
from reknit.rendezvous.store.protocol import Entry, Lease, Store

logger = logging.getLogger(__name__)

LOOK = 0.25  # seconds between two looks
WATCHED, CALLED = 4, 64  # leases, and places: of a large job a few are enough
LONGEST = 60.0  # seconds: no agent's lease is longer, so what stands then does not count


@dataclass(frozen=True)
class _Found:
    """What stands in the store at one moment.  `ran`: the members that have ever had a place, the dead included."""

    head: Head | None
    members: tuple[Member, ...]
    ran: Mapping[str, Entry]
    leases: tuple[int, ...]  # of those of them who are not known to be dead
    revision: int

    @property
    def earlier(self) -> int:
        return earlier_generation(self.head, self.members)


class LookingBack:
    """One agent's look back.  `ttl`: a lease's time to live; `timeout`: of one question to the store (seconds).

    `clock`, `sleep` and `call` are there for tests.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        rejected: Rejected,
        ttl: float,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        call: Callable[[Collection[str]], bool] = somebody_answers,
    ) -> None:
        self._store, self._keys, self._rejected = store, keys, rejected
        self._ttl, self._timeout = ttl, timeout
        self._clock, self._sleep, self._call = clock, sleep, call

    def earlier(self, *, patient: bool = True) -> int:
        """The newest generation of a run that is over, 0 for none.  Raises StoreUnavailable.

        Not `patient`: it takes what it finds for the truth, as an agent must that goes on with an earlier lease.
        """
        first = found = self._find()
        if found.head is None or found.head.state in (FINISHED, LOST):
            return found.earlier
        if found.leases and patient:
            logger.info("looking whether the job runs: waiting for a sign of life, or the end of what is left of it")
        deadline, ends = self._clock() + LONGEST, Ends()
        while found.leases and patient:
            if self._renewed(found.leases, ends, deadline) or self._clock() >= deadline:
                return 0
            found = self._find()
            if _written_since(first, found):
                return 0
        return 0 if found.earlier and self._goes_on_unseen(found, patient) else found.earlier

    def _find(self) -> _Found:
        standing = self._store.list(self._keys.members, timeout=self._timeout)
        entry = self._store.get(self._keys.head, timeout=self._timeout)
        head = None if entry is None else self._rejected.read(entry, decode_head)
        read = {e.key: (e, self._rejected.read(e, decode_member)) for e in standing.entries if e.lease}
        known = {key: (e, member) for key, (e, member) in read.items() if member is not None}
        ran = {key: e for key, (e, member) in known.items() if has_run(replace(member, dead=False))}
        leases = {e.lease for e, member in known.values() if has_run(member)}
        return _Found(head, tuple(member for _, member in known.values()), ran, tuple(leases), standing.revision)

    def _renewed(self, leases: Sequence[int], ends: Ends, deadline: float) -> bool:
        """Wait until one of the leases has been renewed (true) or has ended, or the time is over (both false)."""
        watched = random.sample(leases, min(WATCHED, len(leases)))
        while self._clock() < deadline:
            for number in watched:
                asked = self._clock()
                left = self._store.time_to_live(Lease(number, 0), timeout=self._timeout)
                if left is None:
                    return False
                if ends.later(number, asked, self._clock(), left):
                    return True
            self._sleep(LOOK)
        return False

    def _goes_on_unseen(self, found: _Found, patient: bool) -> bool:
        """Whether workers of a run that has no records go on to answer at the addresses in its plan."""
        deadline = self._clock() + (self._ttl + 2 * RETURN if patient else 0.0)
        addresses = self._addresses(found) - {member.address for member in found.members}
        while addresses and self._call(addresses):
            if self._clock() >= deadline:
                logger.warning("workers of the job answer, but have no records: their hosts are cut off from the store")
                return True
            self._sleep(LOOK)
            if not self._find().earlier:
                return True
        return False

    def _addresses(self, found: _Found) -> set[str]:
        """Where those who have a place listen: one of each host."""
        head = found.head
        if head is None or not head.replicas:
            return set()
        prefix = f"{self._keys.prefix}{parts_prefix(head.generation, head.writer)}data/"
        read = [self._rejected.read(e, decode_peers) for e in self._store.list(prefix, timeout=self._timeout).entries]
        peers: list[Peer] = [peer for part in read if part is not None for peer in part]
        addresses = {peer.place.host: peer.place.address for peer in peers}
        return set(random.sample(list(addresses.values()), min(CALLED, len(addresses))))


def _written_since(first: _Found, found: _Found) -> bool:
    """Whether somebody who has run, or an agent of such a one, has written in between; or somebody has led."""
    led = found.head is None or first.head is None or found.head.generation != first.head.generation
    return led or any(entry.mod_revision > first.revision for entry in found.ran.values())


class Ends:
    """When leases end, as far as their whole seconds to live tell: one that ends later than it could was renewed."""

    def __init__(self) -> None:
        self._latest: dict[int, float] = {}

    def later(self, lease: int, asked: float, answered: float, left: int) -> bool:
        """Take in that `left` seconds, rounded down, were left at some time from `asked` to `answered`."""
        before = self._latest.get(lease, math.inf)
        self._latest[lease] = min(before, answered + left + 1)
        return left > 0 and asked + left > before  # at 0 it may have run out a while ago

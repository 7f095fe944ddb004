"""For which coordinate each fresh member is told to build its model; what is told is kept until the member is gone.

Level-triggered: an assignment that somebody deletes, or that a store loses, is written again for whoever may still
wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from reknit.rendezvous.assignment import assign, home, incomplete_homes
from reknit.rendezvous.keys import Assignment, decode_assignment, encode_assignment
from reknit.rendezvous.leader.chunks import chunks
from reknit.rendezvous.leader.fence import Fence
from reknit.rendezvous.leader.news import News, follow
from reknit.rendezvous.places import Candidate
from reknit.rendezvous.records import Member, Name, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Delete, Entry, Put

logger = logging.getLogger(__name__)


class Assignments:
    """What has been given, and which of it stands in the store.  A process's coordinate never changes.

    `given`: what this agent knew when it led before, in case the store has lost it.
    """

    def __init__(self, fence: Fence, rejected: Rejected, given: Mapping[Name, int]) -> None:
        self._fence, self._rejected = fence, rejected
        self.given = dict(given)
        self._standing: dict[str, Entry] = {}
        self._told: set[Name] = set()  # written by this leader, while the news of it may still be on its way
        self._gone: set[Name] = set()
        self._forget_at = 0.0
        self.known = False

    def take(self, news: News, now: float) -> None:
        """Take in what stands in the store."""
        self.known = True
        self._told.clear()
        for entry in follow(self._standing, news):
            assignment = self._rejected.read(entry, decode_assignment)
            if assignment is not None:
                self.given.setdefault(assignment.name, assignment.coordinate)

    def to(self, candidates: Iterable[Candidate], size: int) -> dict[Name, int]:
        """The coordinates that were given to these."""
        names = [c.name for c in candidates]
        return {name: self.given[name] for name in names if self.given.get(name, size) < size}

    def tell(
        self,
        members: Iterable[Member],
        candidates: Sequence[Candidate],
        arrived: Mapping[Name, float],
        spec: Spec,
        now: float,
        window: float,
    ) -> dict[str, float]:
        """Tell those who are needed, and tell again what is no longer in the store to those who may wait for it.

        Returns the homes whose members are not told yet, as more of them may arrive, and until when.
        """
        size = spec.axes.size
        given = self.to(candidates, size)
        incomplete = incomplete_homes(candidates, arrived, self.given, spec.wanted, size, now, window)
        told = assign([c for c in candidates if home(c) not in incomplete], given, spec.wanted, size)
        waiting = {m.name for m in members if not m.built and m.name in given and not self._stands(m.name)}
        told.update((name, given[name]) for name in waiting)
        if told:
            puts = [Put(self._key(n), encode_assignment(Assignment(n, coordinate))) for n, coordinate in told.items()]
            for chunk in chunks(puts):
                self._fence.write(chunk)
            self._told.update(told)
            self.given.update(told)
            where = ", ".join(f"{name} for {spec.axes.coordinate(index)}" for name, index in told.items())
            logger.debug("told to build: %s (pipe.model)", where)
        return incomplete

    def forget(self, here: Collection[Name], now: float, after: float) -> None:
        """Forget what was given to processes that have not been `here` for `after` seconds or more."""
        if now < self._forget_at:
            return
        gone = self.given.keys() - here
        forget, self._gone = gone & self._gone, gone - self._gone
        self._forget_at = now + after
        workers = {name.worker_id for name in here}
        for chunk in chunks(Delete(self._key(name)) for name in forget if name.worker_id not in workers):
            self._fence.write(chunk)
        for name in forget:
            del self.given[name]

    def _stands(self, name: Name) -> bool:
        entry = self._standing.get(self._key(name))
        assignment = None if entry is None else self._rejected.read(entry, decode_assignment)
        return name in self._told or (assignment is not None and assignment.name == name)

    def _key(self, name: Name) -> str:
        return self._fence.keys.assignment(name.worker_id)

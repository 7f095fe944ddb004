"""Looking at a job from outside: the sign that somebody looks, and what the agents then tell, with its age.

Hosts' clocks are not compared: what an agent tells is as old as the moment at which this looker first saw it, by its
own clock, so up to the time between two looks too young.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreRefused
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.shows import AGAIN, LEASE, TELLS, encode_look
from reknit.rendezvous.store.protocol import Lease, Store
from reknit.rendezvous.whole_job import JobRecords, Told, WholeJob

log = logging.getLogger(__name__)

GLANCE = 0.05  # seconds between two looks for whether all agents have told


@dataclass(frozen=True)
class Sight:
    """A job as seen at `at`, by one who has looked `since` then (monotonic seconds of the looker).

    `told_at`: when what each agent tells was first seen; one of which nothing was heard since `since` is not in it.
    """

    job: WholeJob
    at: float
    since: float
    told_at: Mapping[str, float] = field(default_factory=dict)


class Looker:
    """One who looks at a job for as long as `see` is called.  Not thread-safe; the constructor opens nothing.

    `by` says for people who it is.  Writes nothing while the job has no agent that could tell.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        rejected: Rejected,
        by: str,
        *,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._records = JobRecords(store, keys, rejected, timeout=timeout)
        self._store, self._key, self._value, self._timeout = store, keys.look, encode_look(by), timeout
        self._clock, self._pause = clock, pause
        self._lease: Lease | None = None
        self._looked: float | None = None
        self._refused = False
        self._since = clock()
        self._revision = 0  # of the first look: what was told before it is old
        self._seen: dict[str, tuple[int, float]] = {}  # agent → of what it tells the revision, and when it was seen

    def see(self, patience: float = 0.0) -> Sight:
        """Look, and read the job.  Waits up to `patience` seconds for all agents to tell, if they have not.

        Raises StoreError if the store does not answer.
        """
        begun = self._clock()
        job = self._records.whole()
        if job.agents and self._look() and patience:
            self._note(job.told)
            agents = {agent.agent for agent in job.agents}
            while agents - self._seen.keys() and self._clock() - begun < patience:
                self._pause(GLANCE)
                self._look()
                self._note(self._records.told())
            job = self._records.whole()
        self._note(job.told)
        here = {told.show.agent for told in job.told}
        told_at = {agent: at for agent, (_, at) in self._seen.items() if agent in here}
        return Sight(job, self._clock(), self._since, told_at)

    def close(self) -> None:
        """Look no more: the agents soon stop telling.  Raises nothing."""
        lease, self._lease, self._looked = self._lease, None, None
        if lease is not None:
            try:
                self._store.revoke(lease, timeout=self._timeout)
            except StoreError:
                pass  # it runs out by itself

    def _look(self) -> bool:
        """Say that somebody looks, if it is time to.  False: it must not, or etcd is full; then nobody is asked."""
        now = self._clock()
        if self._looked is not None and now - self._looked < AGAIN:
            return True
        anew = self._looked is None or now - self._looked > TELLS
        try:
            revision = self._put()
        except StoreRefused as error:
            log.log(logging.DEBUG if self._refused else logging.WARNING, "agents cannot be asked to tell: %s", error)
            self._refused, self._looked, self._since = True, None, now
            return False
        if anew:
            self._since, self._revision, self._seen = now, revision, {}
        self._looked, self._refused = now, False
        return True

    def _put(self) -> int:
        try:
            if self._lease is not None:
                self._store.keep_alive(self._lease, timeout=self._timeout)
                return self._store.put(self._key, self._value, lease=self._lease, timeout=self._timeout)
        except LeaseLost:
            pass
        self._lease = self._store.grant(LEASE, timeout=self._timeout)
        return self._store.put(self._key, self._value, lease=self._lease, timeout=self._timeout)

    def _note(self, found: Iterable[Told]) -> None:
        now = self._clock()
        for told in found:
            before = self._seen.get(told.show.agent)
            if told.revision > self._revision and (before is None or before[0] != told.revision):
                self._seen[told.show.agent] = told.revision, now

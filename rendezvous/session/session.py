"""One agent's standing in the job: its lease, its members' records, its candidacy, and the news of plans.

A shell that ties together `candidacy` (the lease and the election), `mirror` (the records) and `views` (the plan's
parts).  Everything that the agent's loop calls returns at once (but `propose_spec`, `look_back`
and `close`); what comes of it arrives through `emit`, as one of the events of `session.events`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reknit.rendezvous.codec import decode_member, decode_spec, encode_member, encode_spec
from reknit.rendezvous.earlier import earlier_generation
from reknit.rendezvous.errors import ReknitError, StoreError, StoreUnavailable
from reknit.rendezvous.keys import Keys, decode_assignment
from reknit.rendezvous.parts import Head, decode_head
from reknit.rendezvous.records import Member, Name, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.candidacy import Candidacy, Timing
from reknit.rendezvous.session.events import Assigned, HeadSeen, SessionEvent
from reknit.rendezvous.session.mirror import Mirror
from reknit.rendezvous.session.views import ViewFetcher
from reknit.rendezvous.store.protocol import Compare, Entry, Event, Lease, Put, Snapshot, Store, WatchHandle

logger = logging.getLogger(__name__)


class SpecMismatchError(ReknitError, ValueError):
    """The job runs with other axes than were asked for."""


@dataclass(frozen=True)
class SessionState:
    """What the status shows.  Times are monotonic; `generation` is the newest that was seen."""

    leader: str | None
    revision: int
    lease: int | None
    lease_deadline: float | None
    down_since: float | None
    generation: int
    counters: dict[str, int]

    @property
    def leading(self) -> bool:
        """Whether this agent leads."""
        return self.revision > 0


class Session:
    """Lease, records, candidacy and watches of one agent.  The constructor opens nothing; `start` does.

    `emit` is called from several threads and must return soon.
    """

    def __init__(
        self, store: Store, job: str, agent_id: str, emit: Callable[[SessionEvent], None], timing: Timing | None = None
    ) -> None:
        self._store, self._keys, self._emit = store, Keys(job), emit
        self._timing = timing or Timing()
        self._rejected = Rejected(logger)
        timeout, retry = self._timing.operation, self._timing.retry
        self._candidacy = Candidacy(store, self._keys.leader, agent_id, self._timing, emit, self._use)
        self._mirror = Mirror(store, self._candidacy.lose, self._candidacy.doubt, timeout=timeout, retry=retry)
        self._views = ViewFetcher(store, self._keys, emit, self._rejected, timeout=timeout, retry=retry)
        self._lock = threading.Lock()
        self._closing = False
        self._generation = 0
        self._members: dict[str, Member] = {}
        self._given: dict[str, tuple[Name, int]] = {}
        self._told: dict[str, Name] = {}
        self._watches: dict[str, WatchHandle | None] = {}

    # ---------------------------------------------------------------- what the agent calls

    def start(self) -> None:
        """Start the threads: lease, candidacy, watches.  Does not wait for the store."""
        self._mirror.start()
        self._views.start()
        self._candidacy.start()
        self._watch(self._keys.head, self._on_head)
        self._watch(self._keys.leader, self._candidacy.see)

    def set_member(self, member: Member) -> None:
        """Declare a member's record; it is written under the lease, and again under every later lease."""
        key = self._keys.member(member.worker_id)
        with self._lock:
            self._members[member.worker_id] = member
            self._mirror.declare(key, encode_member(member))
        self._tell(member.worker_id)
        self._watch(
            self._keys.assignment(member.worker_id),
            lambda entry: self._on_assignment(member.worker_id, entry),
        )

    def remove_member(self, worker_id: str) -> None:
        """Delete a member's record now: the worker is gone."""
        with self._lock:
            self._mirror.withdraw(self._keys.member(worker_id))
            self._members.pop(worker_id, None)
            self._told.pop(worker_id, None)
        # What it was given stays known, as the same process may attach again; its assignments are watched on, as its
        # next incarnation would else wait for a new watch.

    def request_view(self, head: Head, name: Name, coordinate: int | None) -> None:
        """Fetch what `name` at `coordinate` (None: it has none) needs of the plan; answered by `ViewFetched`.

        Is tried until it succeeds; a newer request for the same name replaces an older one.
        """
        self._views.request(head, name, coordinate)

    def propose_spec(self, spec: Spec, *, timeout: float = 10.0) -> Spec:
        """Store the job's spec if it has none; return the one that stands.  Waits for the store.

        Raises SpecMismatchError if the job has other axes, StoreUnavailable after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                standing = self._propose_once(spec)
            except StoreUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(self._timing.retry)
                continue
            if standing is not None:
                break
        if standing.axes != spec.axes:
            raise SpecMismatchError(
                f"job {self._keys.job!r} runs with pipe {standing.axes.pipe} x model {standing.axes.model}, but this "
                f"agent asks for pipe {spec.axes.pipe} x model {spec.axes.model}: start it with the job's axes, or "
                "under another job id"
            )
        if standing != spec:
            logger.info("the job has a spec already, which is used: %s", standing)
        return standing

    def look_back(self, *, timeout: float = 10.0) -> int:
        """The newest generation of an earlier run of this job, 0 for none; call it before `start`, it waits.

        Raises StoreUnavailable after `timeout` seconds.
        """
        found = self._store.list(self._keys.members, timeout=timeout).entries
        entry = self._store.get(self._keys.head, timeout=timeout)
        head = None if entry is None else self._rejected.read(entry, decode_head)
        members = (self._rejected.read(found_entry, decode_member) for found_entry in found if found_entry.lease)
        return earlier_generation(head, [member for member in members if member is not None])

    @property
    def lease_deadline(self) -> float:
        """Until when (monotonic) the lease surely stands; 0 without a lease."""
        return self._candidacy.deadline

    def sure(self, now: float) -> bool:
        """Whether the lease surely stands, so that a leader may publish."""
        return now < self.lease_deadline

    def settles(self, now: float) -> float:
        """When, after an outage of the store, missing records may be taken for losses (`election.Contact`)."""
        return self._candidacy.settles(now)

    @property
    def written(self) -> bool:
        """Whether the store holds all records as they were declared, as far as is known."""
        return self._mirror.settled

    @property
    def state(self) -> SessionState:
        """What the status shows."""
        candidacy, mirror = self._candidacy, self._mirror
        lease = candidacy.lease
        return SessionState(
            leader=candidacy.leader,
            revision=candidacy.revision,
            lease=None if lease is None else lease.id,
            lease_deadline=candidacy.deadline or None,
            down_since=candidacy.down_since,
            generation=self._generation,
            counters={
                **candidacy.counters,
                "writes": mirror.writes,
                "deletions": mirror.deletions,
                "rejected": self._rejected.count,
            },
        )

    def close(self, *, revoke: bool = True) -> None:
        """Stop; `revoke`: end the lease, so that all of this agent's records go at once.  Waits a few seconds at most.

        Close a `Leader` first.  Without `revoke` the records stand until the lease ends by itself.
        """
        with self._lock:
            self._closing = True
            watches = [watch for watch in self._watches.values() if watch is not None]
            self._watches.clear()
        for watch in watches:
            watch.close()
        parts = (self._views, self._mirror, self._candidacy)
        for part in parts:
            part.stop()
        for part in parts:
            part.close()
        lease = self._candidacy.lease
        if revoke and lease is not None:
            try:
                self._store.revoke(lease, timeout=self._timing.operation)
            except StoreError as error:
                logger.warning("the lease was not revoked and will run out by itself: %s", error)

    # ---------------------------------------------------------------- watches (their threads)

    def _watch(self, key: str, changed: Callable[[Entry | None], None]) -> None:
        """Follow one exact key, unless it is followed already; `changed` gets its newest state."""
        with self._lock:
            if key in self._watches or self._closing:
                return
            self._watches[key] = None

        def on_reset(snapshot: Snapshot) -> None:
            changed(snapshot.entries[0] if snapshot.entries else None)

        def on_events(events: Sequence[Event]) -> None:
            changed(events[-1].entry)

        handle = self._store.watch(key, on_reset, on_events)
        with self._lock:
            if key in self._watches and not self._closing:
                self._watches[key] = handle
                return
        handle.close()

    def _on_head(self, entry: Entry | None) -> None:
        head = None if entry is None else self._rejected.read(entry, decode_head)
        if head is None:
            return
        with self._lock:
            newest = self._generation
            self._generation = max(newest, head.generation)
        if head.generation > newest:
            self._views.newest(head.generation)
            self._emit(HeadSeen(head))
        elif head.generation < newest:
            logger.warning("ignoring generation %d: generation %d has been seen", head.generation, newest)

    def _on_assignment(self, worker_id: str, entry: Entry | None) -> None:
        assignment = None if entry is None else self._rejected.read(entry, decode_assignment)
        if assignment is not None:
            with self._lock:
                self._given[worker_id] = (assignment.name, assignment.coordinate)
            self._tell(worker_id)

    def _tell(self, worker_id: str) -> None:
        """Emit the assignment of the incarnation that is declared, once: a coordinate never changes."""
        with self._lock:
            member, given = self._members.get(worker_id), self._given.get(worker_id)
            if member is None or given is None or given[0] != member.name or self._told.get(worker_id) == member.name:
                return
            self._told[worker_id] = member.name
        self._emit(Assigned(worker_id, member.incarnation, given[1]))

    def _use(self, lease: Lease) -> None:
        self._mirror.use(lease)

    def _propose_once(self, spec: Spec) -> Spec | None:
        """The spec that stands, or None if it has to be looked at again."""
        key = self._keys.spec
        entry = self._store.get(key)
        standing = None if entry is None else self._rejected.read(entry, decode_spec)
        if standing is None:
            guard = Compare.absent(key) if entry is None else Compare.mod_revision(key, entry.mod_revision)
            self._store.transaction([guard], [Put(key, encode_spec(spec))])
        return standing

"""One agent's standing in the job: its lease, its members' records, its candidacy, and the news of plans.

A shell that ties together `opening` (what is settled before the start), `candidacy` (the lease and the election),
`mirror` (the records), `views` (the plan's parts) and `accusations` (whether agents live).  Everything that the agent's
loop calls returns at once, but `close` and what is for before `start`: `propose_spec`, `look_back`, `namesake`,
`adopt` and `revoke_earlier`.  What comes of it arrives through `emit`, as one of the events of `session.events`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from reknit.rendezvous.accusation import AgentRecord, encode_agent
from reknit.rendezvous.codec import encode_member
from reknit.rendezvous.draining import decode_order
from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.keys import Keys, decode_assignment
from reknit.rendezvous.parts import Head, decode_head
from reknit.rendezvous.records import Member, Name, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.accusations import Accuser, Responder
from reknit.rendezvous.session.candidacy import Candidacy, Timing
from reknit.rendezvous.session.events import Assigned, DrainAsked, HeadSeen, SessionEvent
from reknit.rendezvous.session.gaps import GapWriter
from reknit.rendezvous.session.looking_back import LookingBack
from reknit.rendezvous.session.mirror import Mirror
from reknit.rendezvous.session.opening import Opening, SpecMismatchError
from reknit.rendezvous.session.reading import JobReader
from reknit.rendezvous.session.telling import Teller
from reknit.rendezvous.session.views import ViewFetcher
from reknit.rendezvous.session.watches import Watches
from reknit.rendezvous.shows import Show
from reknit.rendezvous.store.protocol import MAX_OPERATIONS, Delete, Entry, Lease, Store

__all__ = ["Session", "SessionState", "SpecMismatchError"]

logger = logging.getLogger(__name__)


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
        self._agent_id = agent_id
        self._rejected = Rejected(logger)
        timeout, retry = self._timing.operation, self._timing.retry
        self._opening = Opening(store, self._keys, agent_id, self._rejected, retry)
        self._candidacy = candidacy = Candidacy(store, self._keys.leader, agent_id, self._timing, emit, self._use)
        last = self._keys.agent(agent_id)
        self._mirror = Mirror(store, candidacy.lose, candidacy.doubt, timeout=timeout, retry=retry, last=last)
        self._views = ViewFetcher(store, self._keys, emit, self._rejected, timeout=timeout, retry=retry)
        self._gaps = GapWriter(store, self._keys, self._rejected, timeout=timeout, retry=retry)
        self._reader = JobReader(store, self._keys, emit, self._rejected, timeout=timeout)
        show = self._keys.show(agent_id)
        self._teller = Teller(store, show, lambda: candidacy.lease, emit, timeout=timeout)
        self._responder = Responder(store, emit, self._rejected, timeout=timeout, retry=retry)
        self._accuser = Accuser(
            store,
            self._keys,
            agent_id,
            lambda: candidacy.lease,
            candidacy.calms,
            candidacy.doubt,
            answer=self._timing.answer,
            timeout=timeout,
            retry=retry,
        )
        self._parts = (self._mirror, self._views, self._responder, self._accuser, self._teller, self._gaps)
        self._lock = threading.Lock()
        self._generation = 0
        self._members: dict[str, Member] = {}
        self._given: dict[str, tuple[Name, int]] = {}
        self._told: dict[str, Name] = {}
        self._watches = Watches(store, candidacy.begin_anew)

    # ---------------------------------------------------------------- what the agent calls

    def start(self) -> None:
        """Start the threads: lease, candidacy, watches.  Does not wait for the store."""
        for part in (*self._parts, self._candidacy):
            part.start()
        self._watches.follow(self._keys.accusation(self._agent_id), self._responder.see)
        self._watches.follow(self._keys.head, self._on_head)
        self._watches.follow(self._keys.leader, self._candidacy.see)
        self._watches.follow(self._keys.look, self._teller.see)
        with self._lock:
            members = list(self._members)
        for worker_id in members:
            self._watch_worker(worker_id)

    def set_agent(self, record: AgentRecord) -> None:
        """Declare this agent's own record; under a new lease it is written after all its members' records.

        So at any revision at which it stands, every member of this agent that has no record is gone.
        """
        self._mirror.declare(self._keys.agent(self._agent_id), encode_agent(record))

    def set_member(self, member: Member) -> None:
        """Declare a member's record; it is written under the lease, and again under every later lease."""
        key = self._keys.member(member.worker_id)
        with self._lock:
            self._members[member.worker_id] = member
            self._mirror.declare(key, encode_member(member))
        self._tell(member.worker_id)
        self._watch_worker(member.worker_id)

    def bury(self, worker_id: str) -> None:
        """The worker has died: say so in its record, now, and again under every later lease.

        Unlike a deletion this is told apart from a record that has not come back after an outage of the store.  It
        stands until the next `set_member` or `remove_member`; a worker that has no record gets none.
        """
        with self._lock:
            member = self._members.get(worker_id)
            if member is None or member.dead:
                return
            self._members[worker_id] = dead = replace(member, dead=True, stall=None)
            self._mirror.declare(self._keys.member(worker_id), encode_member(dead), urgent=True)

    def remove_member(self, worker_id: str) -> None:
        """Delete a member's record now: the worker has gone in order, or will not be missed."""
        with self._lock:
            self._mirror.withdraw(self._keys.member(worker_id))
            self._members.pop(worker_id, None)
            self._told.pop(worker_id, None)
        # What it was given stays known, as the same process may attach again; its assignments are watched on, as its
        # next incarnation would else wait for a new watch.

    def dismiss(self, worker_id: str) -> None:
        """Delete the record of a worker that drains and may end, but first of all its order to do so.

        By that order whoever gave it tells those who left from those who were lost (`DrainOrder`).
        """
        self._mirror.withdraw(self._keys.drain(worker_id))
        self.remove_member(worker_id)

    def accuse(self, agent: str, generation: int, reason: str) -> None:
        """Ask whether `agent` lives, of whose workers a member lost sight in `generation`; `reason` is for people.

        If it does not answer in time its accusation is marked as unanswered, on which the leader acts; if it is the
        leader its lease is revoked.  Dropped when a newer plan has come and the agent has left.  This agent itself is
        never asked.
        """
        self._accuser.accuse(agent, generation, reason)

    def request_view(self, head: Head, name: Name, coordinate: int | None) -> None:
        """Fetch what `name` at `coordinate` (None: it has none) needs of the plan; answered by `ViewFetched`.

        Is tried until it succeeds; a newer request for the same name replaces an older one.
        """
        self._views.request(head, name, coordinate)

    def note_gap(self, generation: int, seconds: float, surely: bool = False) -> None:
        """The job stood still for `seconds` for this generation: the leader's agent adds it to the history.

        The leader's workers may all be spares, so one other does so as well (`surely`); whoever is first has said it.
        """
        if surely or self._candidacy.revision > 0:
            self._gaps.note(generation, seconds)

    def request_job(self) -> None:
        """Read the newest plan and all members; answered by `JobRead`, or not at all if the store does not answer."""
        self._reader.request()

    def tell(self, show: Show) -> None:
        """What goes on here, as an answer to `LookedAt`."""
        self._teller.tell(show)

    def propose_spec(self, spec: Spec, *, timeout: float = 10.0) -> Spec:
        """Store the job's spec if it has none; return the one that stands.  Waits for the store.

        What a run that has ended left is replaced by the first agent that comes, if it asks for another shape.
        Raises SpecMismatchError if the job has other axes, StoreUnavailable after `timeout` seconds.
        """
        return self._opening.propose_spec(spec, timeout)

    def look_back(self, *, timeout: float = 10.0) -> int:
        """The newest generation of an earlier run of this job, 0 for none; call it before `start`, it waits.

        Where something is left of a run it takes until one of its agents has renewed its lease, or, if none does, up
        to two leases; after `adopt` has found something it takes a moment.  Raises StoreUnavailable when the store
        has not answered for `timeout` seconds.
        """
        self._candidacy.join()
        back = LookingBack(self._store, self._keys, self._rejected, self._timing.ttl, timeout)
        return back.earlier(patient=self._candidacy.lease is None)

    def namesake(self, *, timeout: float = 10.0) -> AgentRecord | None:
        """The agent known by this agent's name, which may be its earlier life; call it before `start`, it waits.

        Raises StoreUnavailable after `timeout` seconds.
        """
        found = self._opening.namesake(timeout)
        return None if found is None else found[1]

    def adopt(self, node: str, *, timeout: float = 10.0) -> list[Member]:
        """Go on with the lease of an earlier life of this agent at `node`; call it before `start`, it waits.

        Returns the records that hang on that lease, those of the dead included: they count as declared, so they are
        only written when they change.  With the lease comes the office, if the earlier life led.  Returns nothing if
        that lease has ended, or is another node's; then the session begins with a new one.  It is the caller's to know
        that the earlier life is over.  Raises StoreUnavailable after `timeout` seconds.
        """
        legacy = self._opening.legacy(node, timeout)
        if legacy is None:
            return []
        logger.info(
            "going on with lease %x of this agent's earlier life, %d members", legacy.lease.id, len(legacy.members)
        )
        self._members.update({member.worker_id: member for member in legacy.members})
        self._mirror.adopt(legacy.lease, legacy.values)
        self._candidacy.adopt(legacy.lease, legacy.asked)
        return list(legacy.members)

    def revoke_earlier(self, node: str, *, timeout: float = 10.0) -> bool:
        """End the lease of an earlier life of this agent at `node`, and all that hangs on it; return if there was one.

        For an agent whose earlier workers are nobody's any more.  Call it before `start`, it waits.  Raises
        StoreUnavailable after `timeout` seconds.
        """
        lease = self._opening.earlier_lease(node, timeout)
        if lease is not None:
            logger.info("ending lease %x of this agent's earlier life", lease.id)
            self._store.revoke(lease, timeout=timeout)
        return lease is not None

    @property
    def leader(self) -> str | None:
        """The agent that leads, as far as is known."""
        return self._candidacy.leader

    @property
    def lease_deadline(self) -> float:
        """Until when (monotonic) the lease surely stands; 0 without a lease."""
        return self._candidacy.deadline

    def sure(self, now: float) -> bool:
        """Whether the lease surely stands, so that a leader may publish."""
        return now < self.lease_deadline

    def resign(self, rest: float) -> None:
        """Give the office up, and do not ask for it again before `rest` seconds: this agent cannot lead."""
        self._candidacy.resign(rest)

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
        self._watches.close()
        parts = (self._reader, *self._parts, self._candidacy)
        for part in parts:
            part.stop()
        for part in parts:
            part.close()
        if not revoke:
            return
        try:
            self._delete(self._mirror.doomed)  # a drain's order that outlived its worker's record would mean a loss
        except StoreError as error:
            logger.warning("what was withdrawn may still be in the store: %s", error)
        lease = self._candidacy.lease
        try:
            if lease is not None:
                self._store.revoke(lease, timeout=self._timing.operation)
        except StoreError as error:
            logger.warning("the lease was not revoked and will run out by itself: %s", error)

    def _delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), MAX_OPERATIONS):
            operations = [Delete(key) for key in keys[start : start + MAX_OPERATIONS]]
            self._store.transaction([], operations, timeout=self._timing.operation)

    # ---------------------------------------------------------------- what the watches tell (their threads)

    def _watch_worker(self, worker_id: str) -> None:
        self._watches.follow(self._keys.assignment(worker_id), lambda entry: self._on_assignment(worker_id, entry))
        self._watches.follow(self._keys.drain(worker_id), self._on_drain)

    def _on_drain(self, entry: Entry | None) -> None:
        order = None if entry is None else self._rejected.read(entry, decode_order)
        if order is not None:
            self._emit(DrainAsked(order))

    def _on_head(self, entry: Entry | None) -> None:
        head = None if entry is None else self._rejected.read(entry, decode_head)
        if head is None:
            return
        with self._lock:
            newest = self._generation
            self._generation = max(newest, head.generation)
        if head.generation > newest:
            self._views.newest(head.generation)
            self._accuser.newest(head.generation)
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

"""One agent's lease and its candidacy: one thread that grants, renews and campaigns, as `election.decide` says.

A shell.  It never gives up: a store that does not answer freezes membership and nothing else; a lease that is lost is
granted anew.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreUnavailable
from reknit.rendezvous.session.election import RENEWALS, Contact, Role, decide
from reknit.rendezvous.session.events import (
    Deposed,
    Elected,
    LeaseEnded,
    LeaseGranted,
    LeaseRenewed,
    SessionEvent,
    StoreDown,
    StoreUp,
)
from reknit.rendezvous.store.protocol import Compare, Delete, Entry, Lease, Put, Store

logger = logging.getLogger(__name__)

CONTENTION = (0.05, 0.15)  # seconds until a campaign is tried again, if the key is still absent as far as is known
CALM = 1.0  # seconds after any trouble with the store in which every agent that lives is connected to it again


@dataclass(frozen=True)
class Timing:
    """Seconds: the lease's time to live, how soon to try again, and how long one operation may take.

    `keepalive` None: a third of what the store grants.  `answer`: how long an accused agent has to answer.
    """

    ttl: float = 5.0
    keepalive: float | None = None
    retry: float = 0.2
    operation: float = 1.5
    answer: float = 0.35


class Candidacy:
    """The lease and the office of one agent.  Opens nothing before `start`.

    `use` is called with each lease that is granted, before anything else hangs on it; `emit` with what happens.
    """

    def __init__(
        self,
        store: Store,
        leader_key: str,
        agent_id: str,
        timing: Timing,
        emit: Callable[[SessionEvent], None],
        use: Callable[[Lease], None],
    ) -> None:
        self._store, self._key, self._agent_id = store, leader_key, agent_id
        self._timing, self._emit, self._use = timing, emit, use
        self._condition = threading.Condition()
        self._closing = False
        self._awake = False
        self._doubtful = False
        self._refusal = ""
        self._calm_at = 0.0
        self._leader: Entry | None = None
        self._leader_known = False
        self._campaign_at = 0.0
        self._led = False  # whether this agent is the last that led, as far as is known
        self._make_way_until = 0.0
        self._joining = False
        self._resigns = False  # the leader key, which is still ours, is to be deleted
        self.lease: Lease | None = None
        self.contact: Contact | None = None
        self.down_since: float | None = None
        self.revision = 0
        self.counters: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="candidacy", daemon=True)

    def adopt(self, lease: Lease, asked: float) -> None:
        """Begin with a lease that stands, which was renewed just now; `asked` (monotonic) is when.  Before `start`."""
        self.lease, self.contact = lease, Contact(float(lease.ttl), asked)
        self.counters["leases_adopted"] += 1
        self._emit(LeaseGranted(lease.id, float(lease.ttl), False))

    def join(self) -> None:
        """Note that there may be others, whose leases may just have ended together.  Before `start`."""
        self._joining = True

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def see(self, leader: Entry | None) -> None:
        """Take in the newest state of the leader key."""
        with self._condition:
            self._leader, self._leader_known, self._campaign_at = leader, True, 0.0
            if leader is not None and (self.lease is None or leader.lease != self.lease.id):
                self._led = False
        self._wake()

    def lose(self, lease: Lease) -> None:
        """Note that the store no longer knows `lease`."""
        with self._condition:
            if self.lease is not lease:
                return
            self.lease = None
            if self.contact is not None:
                self.contact = self.contact.end(time.monotonic())
            self.counters["leases_lost"] += 1
        logger.warning("the lease of %s is gone from the store: asking for a new one", self._agent_id)
        self._emit(LeaseEnded())
        self._wake()

    def doubt(self) -> None:
        """Something could not be written in time: find out by a renewal, now, whether the store answers."""
        with self._condition:
            self._doubtful = True
            self._calm_at = time.monotonic() + CALM
        self._wake()

    def begin_anew(self) -> None:
        """The store may have lost what it held: look after the lease, and make way for whoever led until now.

        Nobody else knows who sits where.
        """
        with self._condition:
            if not self._led:
                self._make_way_until = time.monotonic() + CALM
        self.doubt()

    def resign(self, rest: float) -> None:
        """Give the office up, and do not ask for it again before `rest` seconds: this agent cannot lead."""
        with self._condition:
            self._resigns, self._led = True, False
            self._make_way_until = max(self._make_way_until, time.monotonic() + rest)
        self._wake()

    @property
    def leader(self) -> str | None:
        """Who leads, as far as is known."""
        leader = self._leader
        return None if leader is None else leader.value.decode(errors="replace")

    @property
    def deadline(self) -> float:
        """Until when (monotonic) the lease surely stands; 0 without a lease."""
        with self._condition:
            return 0.0 if self.lease is None or self.contact is None else self.contact.deadline

    def calms(self, now: float) -> float:
        """From when on (monotonic) everybody who lives hears the store, after all trouble with it that is known."""
        with self._condition:
            return now + CALM if self.down_since is not None else self._calm_at

    def settles(self, now: float) -> float:
        """See `Contact.settles`."""
        contact = self.contact
        return now + self._timing.ttl if contact is None else contact.settles(now)

    def stop(self) -> None:
        """Begin to stop, without waiting for it."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()

    def close(self) -> None:
        """Stop; waits for the operation under way.  The lease is left standing."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(self._timing.operation + 1)

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._closing:
                    break
                self._awake = False
            wait = self._timing.retry
            try:
                wait = self._act()
            except StoreUnavailable as error:
                self._unavailable(error)
            except LeaseLost:
                pass  # noted where it was raised; the next round grants a new one
            except StoreError as error:
                self._complain(str(error))
            except Exception:
                logger.exception("the session failed, will try again")
            with self._condition:
                if not self._awake and not self._closing:
                    self._condition.wait(max(0.0, wait))
        self._step_down("the session ends")

    def _act(self) -> float:
        """Do what is due; return the seconds until something else will be."""
        now = time.monotonic()
        try:
            if self.lease is None:
                self._grant(now)
            elif self.contact is not None and (self._doubtful or now >= self._renew_at(self.contact)):
                self._renew(self.lease, now)
        finally:
            wait = self._elect(time.monotonic())
        contact = self.contact
        if self.lease is None or contact is None:
            return 0.0
        return min(wait, self._renew_at(contact) - time.monotonic())

    def _renew_at(self, contact: Contact) -> float:
        return contact.renewed + (self._timing.keepalive or contact.ttl / RENEWALS)

    def _grant(self, asked: float) -> None:
        lease = self._store.grant(self._timing.ttl, timeout=self._timing.operation)
        self._refusal = ""
        now = time.monotonic()
        again = self.contact is not None
        with self._condition:
            self.lease = lease
            before = self.contact or Contact(float(lease.ttl), asked)
            if self._joining and not again:  # of an outage before its time it knows nothing
                before = before.end(now)
            self.contact = before.renew(asked, now, float(lease.ttl))
            self.counters["leases_granted"] += 1
        self._use(lease)
        self._available(now)
        if again:
            logger.warning("a new lease is granted: all of this agent's records are written anew")
        self._emit(LeaseGranted(lease.id, float(lease.ttl), again))

    def _renew(self, lease: Lease, asked: float) -> None:
        try:
            ttl = self._store.keep_alive(lease, timeout=self._timing.operation)
        except LeaseLost:
            self.lose(lease)
            raise
        now = time.monotonic()
        with self._condition:
            if self.contact is not None:
                self.contact = self.contact.renew(asked, now, float(ttl))
            self.counters["renewals"] += 1
            deadline = self.contact.deadline if self.contact is not None else now
        self._available(now)
        self._emit(LeaseRenewed(deadline))

    def _unavailable(self, error: StoreUnavailable) -> None:
        with self._condition:
            self.counters["store_failures"] += 1
            if self.down_since is not None:
                return
            self.down_since = since = time.monotonic()
        logger.warning("the store does not answer: membership is frozen, training goes on (%s)", error)
        self._emit(StoreDown(since))

    def _complain(self, refusal: str) -> None:
        # a full etcd refuses leases and offices, several times a second, until somebody makes room: said once
        level = logging.DEBUG if refusal == self._refusal else logging.ERROR
        logger.log(level, "the store refuses this agent, will try again: %s", refusal)
        self._refusal = refusal

    def _available(self, now: float) -> None:
        with self._condition:
            since, self.down_since, self._doubtful = self.down_since, None, False
            if since is not None:
                self._calm_at = now + CALM
        if since is not None:
            logger.warning("the store answers again after %.1f s", now - since)
            self._emit(StoreUp(now - since))

    def _elect(self, now: float) -> float:
        """Act on the leader key; return the seconds until this should be looked at again without news."""
        with self._condition:
            leader, lease = self._leader, self.lease
            decision = decide(leader, self._leader_known, lease, self.contact, now)
            deadline = self.contact.deadline if self.contact is not None else now
        if decision.role is Role.HOLD and self._resigns and leader is not None:
            self._step_down("it cannot lead, and makes way")
            self._transact([Compare.mod_revision(leader.key, leader.mod_revision)], Delete(leader.key))
            return self._timing.retry  # until the watch tells of it
        if decision.role is Role.HOLD:
            self._take_office(decision.revision)
            return deadline - now
        self._resigns = self._resigns and leader is not None and lease is not None and leader.lease == lease.id
        self._step_down(decision.reason)
        wait = max(self._campaign_at, self._make_way_until if decision.role is Role.CAMPAIGN else 0.0) - now
        if wait > 0:
            return wait
        if decision.role is Role.CAMPAIGN and lease is not None:
            self._campaign(lease)
        elif decision.role is Role.CLEAR and leader is not None:
            logger.warning("%s; deleting it", decision.reason)
            self._pause_campaign()
            self._transact([Compare.mod_revision(leader.key, leader.mod_revision)], Delete(leader.key))
        else:
            return self._timing.ttl
        return max(0.0, self._campaign_at - time.monotonic())

    def _campaign(self, lease: Lease) -> None:
        self._pause_campaign()  # the watch tells what came of it; this only bounds the wait
        self.counters["campaigns"] += 1
        try:
            won = self._transact([Compare.absent(self._key)], Put(self._key, self._agent_id.encode(), lease))
            self._refusal = ""
        except LeaseLost:
            self.lose(lease)
            raise
        logger.debug("campaigned: %s", "won" if won else "somebody was faster")

    def _pause_campaign(self) -> None:
        with self._condition:
            self._campaign_at = time.monotonic() + random.uniform(*CONTENTION)

    def _transact(self, compares: Sequence[Compare], operation: Put | Delete) -> bool:
        return self._store.transaction(compares, [operation], timeout=self._timing.operation).succeeded

    def _take_office(self, revision: int) -> None:
        if self.revision == revision:
            return
        self._step_down("the leader key was created anew")
        with self._condition:
            self.revision, self._led = revision, True
            self.counters["elections"] += 1
        logger.info("%s leads the job (revision %d)", self._agent_id, revision)
        self._emit(Elected(revision))

    def _step_down(self, reason: str) -> None:
        with self._condition:
            was, self.revision = self.revision, 0
        if was:
            level = logging.DEBUG if self._closing else logging.WARNING
            logger.log(level, "%s no longer leads: %s", self._agent_id, reason)
            self._emit(Deposed(reason))

    def _wake(self) -> None:
        with self._condition:
            self._awake = True
            self._condition.notify_all()

"""One term of office: what a leader knows, and its next step.

Apart from `leader`, which owns the thread and the watches, so that this can be driven by a test step by step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from reknit.rendezvous.assignment import assign, surplus
from reknit.rendezvous.codec import decode_spec
from reknit.rendezvous.earlier import continued
from reknit.rendezvous.errors import Deposed, StoreError, StoreUnavailable
from reknit.rendezvous.keys import Assignment
from reknit.rendezvous.leader.publisher import NOTHING, Publisher, newest_reported
from reknit.rendezvous.leader.roster import Roster
from reknit.rendezvous.places import Candidate
from reknit.rendezvous.plan import Observed, Outcome, Patience, candidate, history, is_excluded, next_plan, runs
from reknit.rendezvous.records import FINISHED, LOST, Member, Name, Plan, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Entry, Event, Snapshot

logger = logging.getLogger(__name__)

LOOK = 0.1  # seconds until the leader looks again when it waits for its lease or for the store

News = Snapshot | Sequence[Event]


class Tenure(Protocol):
    """What a leader asks its session."""

    def sure(self, now: float) -> bool:
        """Whether the lease, and so the leader key, surely stands at `now` (monotonic)."""

    def settles(self, now: float) -> float:
        """From when on a missing record means a lost worker (monotonic; later than `now`: not yet)."""


class Term:
    """What a leader knows, and its next step.  Everything but `hear` and `end` belongs to one thread.

    `spec`: what to go by until the store shows a spec that fits: the last one that this agent knew.  `earlier`: the
    newest generation of an earlier run, as this agent found it (`earlier.earlier_generation`).
    """

    def __init__(
        self,
        revision: int,
        publisher: Publisher,
        rejected: Rejected,
        tenure: Tenure,
        patience: Patience,
        detect: float,
        spec: Spec | None = None,
        earlier: int = 0,
    ) -> None:
        self.revision, self.publisher = revision, publisher
        self._rejected, self._tenure, self._patience, self._detect = rejected, tenure, patience, detect
        self.roster = Roster(rejected)
        self.given: dict[str, Assignment] = {}
        self.spec, self._earlier = spec, earlier
        self._spec_looked_up = False
        self.ended = False
        self.waiting_for = "nothing is known yet"
        self.published = 0
        self._condition = threading.Condition()
        self._inbox: deque[tuple[Callable[..., None], News, float]] = deque()
        self._again: float | None = None
        self._loaded = False
        self._complained = False
        self._surplus: tuple[tuple[Name, ...], float] = ((), 0.0)
        self._asked: set[Name] = set()
        self._forgotten: set[str] = set()
        self._forget_at = 0.0

    # ---------------------------------------------------------------- news

    def hear(self, take: Callable[..., None], news: News, now: float) -> None:
        """Queue news of a watch (called from its thread)."""
        with self._condition:
            self._inbox.append((take, news, now))
            self._condition.notify_all()

    def end(self) -> None:
        """End the term (called from any thread)."""
        with self._condition:
            self.ended = True
            self._condition.notify_all()

    def wait(self) -> bool:
        """Wait for news or for the time to look again, take in all news; return whether the term goes on."""
        with self._condition:
            while not self._inbox and not self.ended:
                wait = None if self._again is None else self._again - time.monotonic()
                if wait is not None and wait <= 0:
                    break
                self._condition.wait(wait)
            news, self._inbox = self._inbox, deque()
        for take, what, now in news:
            take(what, now)
        return not self.ended

    def pause(self) -> None:
        """Wait a little, but not beyond the end of the term."""
        with self._condition:
            if not self.ended:
                self._condition.wait(LOOK)

    def on_members(self, news: News, now: float) -> None:
        """Take in records."""
        if isinstance(news, Snapshot):
            self.roster.reset(news, now)
        else:
            self.roster.apply(news, now)

    def on_spec(self, news: News, now: float) -> None:
        """Take in the spec; what does not fit leaves the last one that did."""
        self._spec_looked_up = True
        entry = _newest(news)
        spec = None if entry is None else self._rejected.read(entry, decode_spec)
        if entry is None or spec is None:
            logger.warning("the store shows no spec that fits; going by the last one known: %s", self.spec)
            return
        if self.spec is not None and spec.axes != self.spec.axes:
            self._rejected.add(entry, f"the axes of a running job never change ({self.spec.axes} -> {spec.axes})")
        elif spec != self.spec:
            logger.debug("the spec is now %s", spec)
            self.spec = spec

    def on_head(self, news: News, now: float) -> None:
        """Notice if somebody else has written `plan`."""
        entry = _newest(news)
        if (0 if entry is None else entry.mod_revision) != self.publisher.mod_revision:
            self._loaded = False

    # ---------------------------------------------------------------- the next step

    def look(self, now: float) -> None:
        """Decide and act, once; sets when to look again."""
        self._again = now + LOOK
        try:
            if not self._tenure.sure(now):
                self.waiting_for = "the lease may have ended"
            elif self.spec is None or not self._spec_looked_up or not self.roster.known:
                self.waiting_for, self._again = "there is no spec, or the members are not known yet", None
            else:
                self._step(now, self.spec)
        except (StoreUnavailable, Deposed) as error:
            self._loaded = False
            self._complain(error)
        except StoreError as error:
            self._complain(error)
        else:
            self._complained = False

    def _complain(self, error: StoreError) -> None:
        """Say once what keeps the leader from leading; it goes on trying."""
        self.waiting_for = f"the store: {error}"
        if not self._complained:
            logger.warning("cannot lead at present: %s", error)
        self._complained = True

    def _step(self, now: float, spec: Spec) -> None:
        observed = self.roster.fitting(spec.axes.size)
        members = [o.member for o in observed]
        if not self._loaded or newest_reported(members) > (self.publisher.plan or NOTHING).generation:
            self.publisher.load(members)
            self._loaded = True
        standing = self.publisher.plan or NOTHING
        previous = continued(standing, members, self._earlier)
        if not self._sound(previous, spec):
            return
        if self._held_back(previous, observed, now):
            return
        outcome = next_plan(observed, spec, previous, now, self._patience)
        if outcome.plan is None and outcome.again is None:
            outcome = self._recall(previous, observed) or self._restart(previous, observed, spec, now) or outcome
        if outcome.plan is not None:
            again = "" if previous is standing else f"{previous.reason}; "
            self._publish(replace(outcome.plan, reason=again + outcome.plan.reason), now)
            return
        self.waiting_for, self._again = outcome.reason, outcome.again
        self._assign(previous, observed, spec)
        self._clean(now)

    def _sound(self, plan: Plan, spec: Spec) -> bool:
        sizes = {len(replica.places) for replica in plan.replicas} - {spec.axes.size}
        if sizes:
            self._again = None
            why = f"the spec's axes make replicas of {spec.axes.size}, but the job runs with {sizes}: put them back"
            if why != self.waiting_for:
                logger.error("cannot lead: %s", why)
            self.waiting_for = why
        return not sizes

    def _held_back(self, previous: Plan, observed: Sequence[Observed], now: float) -> bool:
        """After an outage of the store all leases have ended together: who lives comes back, so wait for that."""
        settles = self._tenure.settles(now)
        missing = history(previous).keys() - {o.member.name for o in observed}
        if settles <= now or not missing:
            return False
        self.waiting_for = f"{', '.join(sorted(map(str, missing)))} to come back after the store's outage"
        self._again = min(settles, now + LOOK)
        return True

    def _publish(self, plan: Plan, now: float) -> None:
        self.publisher.publish(plan)
        self.published += 1
        self._again = now  # look once more at once: for assignments, and for what this plan leaves to do
        logger.debug(
            "generation %d: %s (%s, %d replicas, %d spares, broken up to %d; %.1f ms)",
            plan.generation,
            plan.reason,
            plan.state,
            len(plan.replicas),
            len(plan.spares),
            plan.broken,
            (time.monotonic() - now) * 1e3,
        )

    def _assign(self, previous: Plan, observed: Sequence[Observed], spec: Spec) -> None:
        """Tell fresh members for which coordinate to build."""
        placed = previous.names
        if previous.state in (FINISHED, LOST) or any(o.member.finished for o in observed if o.member.name in placed):
            return
        candidates = self._candidates(previous, observed)
        given = self._given_to(candidates, spec.axes.size)
        told = assign(candidates, given, spec.wanted, spec.axes.size)
        if told:
            assignments = [Assignment(name, coordinate) for name, coordinate in told.items()]
            self.publisher.assign(assignments)
            self.given.update({assignment.name.worker_id: assignment for assignment in assignments})
            where = ", ".join(f"{name} for {spec.axes.coordinate(index)}" for name, index in told.items())
            logger.debug("told to build: %s (pipe.model)", where)

    def _recall(self, previous: Plan, observed: Sequence[Observed]) -> Outcome | None:
        """Ask members that were taken for lost, but live and are back, to start afresh; once each."""
        members, past = [o.member for o in observed], history(previous)
        if previous.state in (FINISHED, LOST) or (previous.replicas and not runs(previous, members)):
            return None
        names = tuple(
            sorted(m.name for m in members if is_excluded(m, past) and not m.finished and m.name not in self._asked)
        )
        if not names:
            return None
        self._asked.update(names)
        reason = f"asking {', '.join(map(str, names))}, taken for lost and back, to start afresh"
        return Outcome(restart_plan(previous, names, members, reason), reason)

    def _restart(self, previous: Plan, observed: Sequence[Observed], spec: Spec, now: float) -> Outcome | None:
        """Ask members that fit nowhere, but would if they were fresh, to start afresh; once each, after `detect`."""
        members = [o.member for o in observed]
        if previous.state in (FINISHED, LOST) or any(m.finished for m in members if m.name in previous.names):
            return None
        candidates = self._candidates(previous, observed)
        given = self._given_to(candidates, spec.axes.size)
        over = surplus(candidates, previous.names, given, spec.wanted, spec.axes.size)
        if not runs(previous, members):  # who had a place may still hold the only copy of a state
            over = () if previous.replicas else tuple(name for name in over if name not in history(previous))
        over = tuple(name for name in over if name not in self._asked)
        if over != self._surplus[0]:
            self._surplus = (over, now + self._detect)
        if not over:
            return None
        names, due = self._surplus
        reason = f"{', '.join(map(str, names))} to start afresh: no replica needs them where they are"
        if now < due:
            return Outcome(None, f"waiting before asking {reason}", again=due)
        self._asked.update(names)
        return Outcome(restart_plan(previous, names, members, f"asking {reason}"), reason)

    @staticmethod
    def _candidates(previous: Plan, observed: Sequence[Observed]) -> list[Candidate]:
        past = history(previous)
        # While a plan stands, nobody is needed beside those who have finished; without one they hold the last step.
        here = [o.member for o in observed if not (previous.replicas and o.member.finished)]
        return [candidate(member, past.get(member.name)) for member in here]

    def _given_to(self, candidates: Sequence[Candidate], size: int) -> dict[Name, int]:
        living = {c.name for c in candidates}
        return {a.name: a.coordinate for a in self.given.values() if a.name in living and a.coordinate < size}

    def _clean(self, now: float) -> None:
        """Delete old generations, and the assignments of workers that have been gone for a while."""
        self.publisher.collect()
        if now >= self._forget_at:
            here = {name.worker_id for name in self.roster.names()}
            gone = self.given.keys() - here
            forget, self._forgotten = gone & self._forgotten, gone - self._forgotten
            self._forget_at = now + 2 * self._detect
            self.publisher.forget(forget)
            self.given = {worker_id: a for worker_id, a in self.given.items() if worker_id not in forget}


def restart_plan(previous: Plan, names: tuple[Name, ...], members: Sequence[Member], reason: str) -> Plan:
    """The next generation with the same places, which asks `names` to start afresh."""
    generation = previous.generation + 1
    here = {member.name for member in members}
    return replace(
        previous,
        generation=generation,
        reason=reason,
        former=tuple(former for former in previous.former if former.name in here),
        spares=tuple(sorted(here - previous.names)),
        restart=names,
        target=None,
        restore=False,
        placed=generation if previous.replicas else previous.placed,
    )


def _newest(news: News) -> Entry | None:
    """What stands at an exact key after the news."""
    if isinstance(news, Snapshot):
        return news.entries[0] if news.entries else None
    return news[-1].entry

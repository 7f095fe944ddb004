"""One term of office: what a leader knows, and its next step.

Apart from `leader`, which owns the thread and the watches, so that this can be driven by a test step by step.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from reknit.rendezvous.earlier import continued
from reknit.rendezvous.errors import Deposed, StoreError, StoreUnavailable
from reknit.rendezvous.leader.accusations import Accusations
from reknit.rendezvous.leader.assignments import Assignments
from reknit.rendezvous.leader.cooling import Cooling
from reknit.rendezvous.leader.fresh_starts import FreshStarts
from reknit.rendezvous.leader.inbox import Inbox
from reknit.rendezvous.leader.judging import Judge, Judging
from reknit.rendezvous.leader.missing import Missing
from reknit.rendezvous.leader.news import News, newest
from reknit.rendezvous.leader.publisher import NOTHING, Publisher, newest_reported
from reknit.rendezvous.leader.roster import Roster
from reknit.rendezvous.leader.standing_spec import StandingSpec
from reknit.rendezvous.leader.witness import Witness, Witnessing
from reknit.rendezvous.places import Candidate
from reknit.rendezvous.plan import (
    Findings,
    Observed,
    Outcome,
    Patience,
    candidate,
    forgiven,
    history,
    is_here,
    next_plan,
)
from reknit.rendezvous.records import FINISHED, LOST, Name, Plan, Spec
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.election import RENEWALS, RETURN

logger = logging.getLogger(__name__)

LOOK = 0.1  # seconds until the leader looks again when it waits for its lease or for the store
STALLED = 0.5  # ... while a member that has a place is stuck
RESTING = 1.0  # ... while somebody waits because it was put out, so that the status says for how long


class Tenure(Protocol):
    """What a leader asks its session."""

    def sure(self, now: float) -> bool:
        """Whether the lease, and so the leader key, surely stands at `now` (monotonic)."""

    def settles(self, now: float) -> float:
        """From when on a missing record means a lost worker (monotonic; later than `now`: not yet)."""


@dataclass(frozen=True)
class Known:
    """What an agent knows before its term, and goes by where the store shows nothing.

    `spec`: the last one that fitted; `earlier`: the newest generation of an earlier run, as this agent found it
    (`earlier.earlier_generation`); `given`: who had been told to build for which coordinate when this agent last led.
    """

    spec: Spec | None = None
    earlier: int = 0
    given: Mapping[Name, int] = field(default_factory=dict)


class Term:
    """What a leader knows, and its next step.  Everything but `inbox` belongs to one thread.

    `detect` (seconds): the lease's time to live, by which the others have come back after their records were lost; how
    long a superfluous member is left in peace; the first rest of one that was put out.  `again`: when to look again
    without news (monotonic), None: only upon news.
    """

    def __init__(
        self,
        publisher: Publisher,
        rejected: Rejected,
        tenure: Tenure,
        patience: Patience,
        detect: float,
        known: Known | None = None,
        judge: Judge | None = None,
        witness: Witness | None = None,
    ) -> None:
        known = known or Known()
        self.publisher = publisher
        self._rejected, self._tenure, self._patience, self._detect = rejected, tenure, patience, detect
        self.roster = Roster(rejected)
        self.assignments = Assignments(publisher.fence, rejected, known.given)
        self.accusations = Accusations(publisher.fence, self.roster, rejected)
        self._cooling, self._fresh_starts = Cooling(detect), FreshStarts(detect)
        self._judging, self._missing = Judging(judge), Missing()
        self._witnessing = Witnessing(witness, publisher.fence.revision)
        self.standing_spec, self._earlier = StandingSpec(publisher.fence, rejected, known.spec), known.earlier
        self.inbox = Inbox()
        self.waiting_for = "nothing is known yet"
        self.published = 0
        self.steps = 0  # that were done to their end
        self.again: float | None = None
        self._loaded = False
        self._back_at: float | None = None
        self._lost_at = -math.inf
        self._complained = False
        self._grave = ""

    @property
    def revision(self) -> int:
        """The fence of this term."""
        return self.publisher.fence.revision

    @property
    def spec(self) -> Spec | None:
        """What the operator asks for, as far as is known."""
        return self.standing_spec.spec

    # ---------------------------------------------------------------- news

    def wait(self) -> bool:
        """Wait for news or for the time to look again, take in all news; return whether the term goes on."""
        return self.inbox.wait(self.again)

    def on_head(self, news: News, now: float) -> None:
        """Notice if somebody else has written `plan`."""
        entry = newest(news)
        if (0 if entry is None else entry.mod_revision) != self.publisher.mod_revision:
            self._loaded = False

    # ---------------------------------------------------------------- the next step

    def look(self, now: float) -> None:
        """Decide and act, once; sets when to look again."""
        self.again = now + LOOK
        try:
            if not self._tenure.sure(now):
                self.waiting_for = "the lease may have ended"
            elif self.spec is None or not self._heard():
                self.waiting_for, self.again = "there is no spec, or the members are not known yet", None
            else:
                self._step(now, self.spec)
        except (StoreUnavailable, Deposed) as error:
            self._loaded = False
            self._complain(error)
        except StoreError as error:
            self._complain(error)
        else:
            self._complained = False

    def _heard(self) -> bool:
        return self.standing_spec.looked_up and self.roster.known and self.assignments.known

    def _complain(self, error: StoreError) -> None:
        """Say once what keeps the leader from leading; it goes on trying."""
        self.waiting_for = f"the store: {error}"
        if not self._complained:
            logger.warning("cannot lead at present: %s", error)
        self._complained = True

    def _step(self, now: float, spec: Spec) -> None:
        self.standing_spec.put_back(spec)
        observed = self.roster.fitting(spec.axes.size)
        if not self._load(observed, now):
            return
        members = [o.member for o in observed]
        standing = self.publisher.plan or NOTHING
        self._witnessing.show(standing, spec, members)
        previous = continued(standing, members, self._earlier)
        same_run = previous is standing
        begun = "" if same_run else f"{previous.reason}; "
        if not self._sound(previous, spec):
            return
        causes = self.accusations.act(previous)
        if self._held_back(previous, observed, causes, now):
            return
        self._cooling.see(dict(previous.offences), {name.worker_id for name in previous.names}, now)
        previous = forgiven(previous, self._cooling.forgiven(now))
        resting = self._cooling.resting(now)
        settles = self._tenure.settles(now)
        hung = self._judging.hung(observed, previous, now, settles)
        missed = self._missing.see(previous, observed, now)
        findings = Findings(hung, resting.keys(), causes, self._lost_at, missed, min(settles, now + LOOK))
        outcome = next_plan(observed, spec, previous, now, self._patience, findings)
        candidates = self._candidates(previous, observed, resting)
        if outcome.plan is None and outcome.again is None:
            asked = self._fresh_starts.recall(previous, observed) or self._fresh_starts.restart(
                previous, observed, candidates, self.assignments, spec, now
            )
            outcome = asked or outcome
        if outcome.plan is not None:
            if outcome.plan.state not in (FINISHED, LOST):
                self.standing_spec.keep()
            self._publish(replace(outcome, plan=replace(outcome.plan, reason=begun + outcome.plan.reason)), now)
            self._witnessing.show(self.publisher.plan, spec, members)
            self.steps += 1
            return
        self._wait(previous, observed, outcome, resting, now)
        self._assign(previous, observed, candidates, spec, now)
        self._clean(same_run, now)
        self.steps += 1

    def _load(self, observed: Sequence[Observed], now: float) -> bool:
        members = [o.member for o in observed]
        if self._loaded and newest_reported(members) <= (self.publisher.plan or NOTHING).generation:
            return True
        all_here = self._back_at is not None and now >= self._back_at
        self._loaded = self.publisher.load(members, all_here=all_here)
        if self.publisher.emptied and self._back_at is None:
            self._back_at = now + self._detect / RENEWALS + RETURN
        if not self._loaded:
            self.waiting_for = (
                "all who live to come back: the store has lost everything, and nobody knows who sat where"
            )
        return self._loaded

    def _wait(
        self,
        previous: Plan,
        observed: Sequence[Observed],
        outcome: Outcome,
        resting: Mapping[str, float],
        now: float,
    ) -> None:
        """Note what is waited for, and when to look again."""
        if outcome.grave and outcome.reason != self._grave:
            logger.warning("%s", outcome.reason)
        self._grave = outcome.reason if outcome.grave else ""
        here = {o.member.worker_id for o in observed if not o.member.dead and o.member.name not in previous.names}
        rests = [self._cooling.sentence(w, resting[w], now) for w in sorted(here & resting.keys())]
        self.waiting_for = "; ".join([outcome.reason, *rests])
        times = [outcome.again] if outcome.again is not None else []
        times += [now + LOOK] * self.accusations.again
        times += [now + STALLED] * self._judging.open
        times += [now + RESTING] * bool(rests)
        self.again = min(times, default=None)

    def _sound(self, plan: Plan, spec: Spec) -> bool:
        sizes = {len(replica.places) for replica in plan.replicas} - {spec.axes.size}
        if sizes:
            self.again = None
            why = f"the spec's axes make replicas of {spec.axes.size}, but the job runs with {sizes}: put them back"
            if why != self.waiting_for:
                logger.error("cannot lead: %s", why)
            self.waiting_for = why
        return not sizes

    def _held_back(self, previous: Plan, observed: Sequence[Observed], causes: Mapping[Name, str], now: float) -> bool:
        """After an outage of the store all leases have ended together: who lives comes back, so wait for that.

        Not for those whose end is known: by a record that says so, by their worker's next process, or as their agent
        did not answer.
        """
        settles = max(self._tenure.settles(now), self._back_at or 0.0)
        back = {o.member.worker_id for o in observed}
        missing = [name for name in history(previous) if name.worker_id not in back and name not in causes]
        if settles <= now or not missing:
            return False
        self.waiting_for = f"{', '.join(sorted(map(str, missing)))} to come back after the store's outage"
        self.again = min(settles, now + LOOK)
        return True

    def _publish(self, outcome: Outcome, now: float) -> None:
        plan = outcome.plan or NOTHING
        self.publisher.publish(plan)
        if outcome.loss:
            self._lost_at = now
        self.published += 1
        self.again = now  # look once more at once: for assignments, and for what this plan leaves to do
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

    def _assign(
        self, previous: Plan, observed: Sequence[Observed], candidates: Sequence[Candidate], spec: Spec, now: float
    ) -> None:
        """Tell fresh members for which coordinate to build."""
        living = [o.member for o in observed if not o.member.dead]
        if previous.state in (FINISHED, LOST) or any(m.finished for m in living if m.name in previous.names):
            return
        arrived = {o.member.name: o.arrived for o in observed}
        ends = self.assignments.tell(living, candidates, arrived, spec, now, self._patience.join_window)
        if ends:
            self.again = min(ends.values()) if self.again is None else min(self.again, *ends.values())

    @staticmethod
    def _candidates(previous: Plan, observed: Sequence[Observed], resting: Collection[str]) -> list[Candidate]:
        past = history(previous)
        here = [o.member for o in observed if is_here(o.member, previous, past)]
        # Who had a place may hold what nobody else has, whatever it did.
        free = [m for m in here if m.name in past or m.worker_id not in resting]
        # While a plan stands, nobody is needed beside those who have finished; without one they hold the last step.
        return [candidate(m, past.get(m.name)) for m in free if not (previous.replicas and m.finished)]

    def _clean(self, same_run: bool, now: float) -> None:
        """Delete old generations, and the assignments of workers that have been gone for a while.

        `same_run`: no other run of the job is about to begin.
        """
        self.publisher.collect()
        plan = self.publisher.plan
        if same_run and plan is not None and plan.state in (FINISHED, LOST):
            if not self.publisher.leave():
                self.again = now + LOOK
            return
        self.assignments.forget(self.roster.names(), now, 2 * self._detect)

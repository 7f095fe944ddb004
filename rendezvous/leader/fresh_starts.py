"""Whom the leader asks to start afresh: who was taken for lost and is back, and who fits nowhere as it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from reknit.rendezvous.assignment import surplus
from reknit.rendezvous.eviction import still_asked
from reknit.rendezvous.kinds import DECISION
from reknit.rendezvous.leader.assignments import Assignments
from reknit.rendezvous.places import Candidate
from reknit.rendezvous.plan import Observed, Outcome, history, is_excluded, runs
from reknit.rendezvous.records import FINISHED, LOST, Member, Name, Plan, Spec
from reknit.rendezvous.view import some


class FreshStarts:
    """Asks each process once: what a plan asks for stands in those that follow it (`eviction.still_asked`).

    `detect`: seconds for which a member must have been superfluous where it is.
    """

    def __init__(self, detect: float) -> None:
        self._detect = detect
        self._surplus: tuple[tuple[Name, ...], float] = ((), 0.0)

    def recall(self, previous: Plan, observed: Sequence[Observed]) -> Outcome | None:
        """Ask members that were taken for lost, but live and are back; who drains or has finished ends without."""
        members, past = [o.member for o in observed if not o.member.dead], history(previous)
        if previous.state in (FINISHED, LOST) or (previous.replicas and not runs(previous, members)):
            return None
        ends = {m.name for m in members if m.finished or m.draining}
        back = {m.name for m in members if m.name in previous.evicted or (is_excluded(m, past) and m.name not in ends)}
        names = tuple(sorted(back.difference(previous.restart)))
        if not names:
            return None
        reason = f"asking {some(names)}, taken for lost and back, to start afresh"
        return Outcome(restart_plan(previous, names, members, reason), reason)

    def restart(
        self,
        previous: Plan,
        observed: Sequence[Observed],
        candidates: Sequence[Candidate],
        assignments: Assignments,
        spec: Spec,
        now: float,
    ) -> Outcome | None:
        """Ask members that fit nowhere, but would if they were fresh."""
        members = [o.member for o in observed if not o.member.dead]
        if previous.state in (FINISHED, LOST) or any(m.finished for m in members if m.name in previous.names):
            return None
        size = spec.axes.size
        over = surplus(candidates, previous.names, assignments.to(candidates, size), spec.wanted, size)
        if not runs(previous, members):  # who had a place may still hold the only copy of a state
            over = () if previous.replicas else tuple(name for name in over if name not in history(previous))
        return self._ask(tuple(name for name in over if name not in previous.restart), previous, members, now)

    def _ask(self, over: tuple[Name, ...], previous: Plan, members: Collection[Member], now: float) -> Outcome | None:
        if over != self._surplus[0]:
            self._surplus = (over, now + self._detect)
        if not over:
            return None
        due = self._surplus[1]
        reason = f"{some(over)} to start afresh: no replica needs them where they are"
        if now < due:
            return Outcome(None, f"waiting before asking {reason}", again=due)
        return Outcome(restart_plan(previous, over, members, f"asking {reason}"), reason)


def restart_plan(previous: Plan, names: tuple[Name, ...], members: Collection[Member], reason: str) -> Plan:
    """The next generation with the same places, which asks `names` to start afresh."""
    generation = previous.generation + 1
    here = {member.name for member in members}
    idle = here - previous.names
    return replace(
        previous,
        generation=generation,
        reason=reason,
        former=tuple(former for former in previous.former if former.name in here),
        spares=tuple(sorted(idle)),
        restart=still_asked(previous, names, idle),
        target=None,
        restore=False,
        placed=generation if previous.replicas else previous.placed,
        evicted=tuple(name for name in previous.evicted if name in here),
        kind=DECISION,
    )

"""Whom the leader asks to start afresh: who was taken for lost and is back, and who fits nowhere as it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from reknit.rendezvous.assignment import surplus
from reknit.rendezvous.leader.assignments import Assignments
from reknit.rendezvous.places import Candidate
from reknit.rendezvous.plan import Observed, Outcome, history, is_excluded, runs
from reknit.rendezvous.records import FINISHED, LOST, Member, Name, Plan, Spec


class FreshStarts:
    """Remembers who was asked: each process is asked once by one leader.

    `detect`: seconds for which a member must have been superfluous where it is.
    """

    def __init__(self, detect: float) -> None:
        self._detect = detect
        self._asked: set[Name] = set()
        self._surplus: tuple[tuple[Name, ...], float] = ((), 0.0)
        self._put_out: dict[Name, float] = {}

    def recall(self, previous: Plan, observed: Sequence[Observed], now: float) -> Outcome | None:
        """Ask members that were taken for lost, but live and are back.

        The plan that put somebody out has asked it already; but its agent may have seen only a later one.
        """
        members, past = [o.member for o in observed if not o.member.dead], history(previous)
        self._put_out = {m.name: self._put_out.get(m.name, now) for m in members if m.name in previous.evicted}
        if previous.state in (FINISHED, LOST) or (previous.replicas and not runs(previous, members)):
            return None
        late = {name for name, since in self._put_out.items() if now >= since + self._detect}
        back = {m.name for m in members if is_excluded(m, past) and not m.finished} - self._put_out.keys()
        names = tuple(sorted((late | back).difference(self._asked, previous.restart)))
        if not names:
            return None
        self._asked.update(names)
        reason = f"asking {', '.join(map(str, names))}, taken for lost and back, to start afresh"
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
        return self._ask(tuple(name for name in over if name not in self._asked), previous, members, now)

    def _ask(self, over: tuple[Name, ...], previous: Plan, members: Collection[Member], now: float) -> Outcome | None:
        if over != self._surplus[0]:
            self._surplus = (over, now + self._detect)
        if not over:
            return None
        due = self._surplus[1]
        reason = f"{', '.join(map(str, over))} to start afresh: no replica needs them where they are"
        if now < due:
            return Outcome(None, f"waiting before asking {reason}", again=due)
        self._asked.update(over)
        return Outcome(restart_plan(previous, over, members, f"asking {reason}"), reason)


def restart_plan(previous: Plan, names: tuple[Name, ...], members: Collection[Member], reason: str) -> Plan:
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
        evicted=tuple(name for name in previous.evicted if name in here),
    )

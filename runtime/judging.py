"""Between the leader and `health.verdict`: records and a plan in, evictions out.

The verdict knows nothing of records, and the leader nothing of health: this is where they meet.  Who is slow or hung is
told of once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from reknit.health.verdict import HUNG, SLOW, Doing, Observation, Verdict, judge
from reknit.rendezvous.plan import Observed
from reknit.rendezvous.records import Name, Plan


@dataclass(frozen=True)
class Judged:
    """A verdict that has not been told yet, for the agent's loop."""

    worker: str
    verdict: Verdict
    generation: int


class Judge:
    """The leader's `judge`: called on its thread, with all members and the newest plan; `tell` must return at once."""

    def __init__(self, tell: Callable[[Judged], None]) -> None:
        self._tell = tell
        self._told: dict[Name, _Told] = {}

    def __call__(self, observed: Sequence[Observed], plan: Plan, now: float) -> Mapping[Name, str]:
        """Whom to put out, and why."""
        names, observations = observe(observed, plan, now)
        stalls = {item.member.name: item.member.stall for item in observed}
        told, evicted = {}, {}
        for name, verdict in zip(names, judge(observations), strict=True):
            stall = stalls[name]
            if verdict.state not in (SLOW, HUNG) or stall is None:
                continue
            told[name] = _Told(verdict.state, verdict.spared, stall.generation, stall.step)
            if self._told.get(name) != told[name]:
                self._tell(Judged(name.worker_id, verdict, plan.generation))
            if verdict.state == HUNG:
                evicted[name] = verdict.reason
        self._told = {**{name: self._told[name] for name in names if name in self._told}, **told}
        return evicted


class _Told(NamedTuple):
    """What was told of a process, and of which step."""

    state: str
    spared: bool
    generation: int
    step: int


def observe(observed: Sequence[Observed], plan: Plan, now: float) -> tuple[list[Name], list[Observation]]:
    """What all living who have a place are at now: a stall has gone on since its record came."""
    places = {
        place.name: (replica.slot, index, place.since)
        for replica in plan.replicas
        for index, place in enumerate(replica.places)
    }
    names, observations = [], []
    for item in sorted(observed, key=lambda one: one.member.name):
        member = item.member
        if member.name not in places or member.dead:
            continue
        slot, coordinate, since = places[member.name]
        names.append(member.name)
        observations.append(
            Observation(
                member.worker_id,
                coordinate,
                _doing(item, now),
                holds=member.ready >= since,
                draining=member.draining,
                replica=slot,
            )
        )
    return names, observations


def _doing(item: Observed, now: float) -> Doing | None:
    stall = item.member.stall
    if stall is None:
        return None
    finished = item.member.finished
    said = Doing(stall.kind, stall.phase, stall.seconds, stall.limit, stall.step, finished)
    return replace(said, seconds=stall.seconds + max(0.0, now - item.stalled))

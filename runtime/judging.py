"""Between the leader and `health.verdict`: records and a plan in, evictions out; who is slow or hung is told once.

The verdict knows nothing of records, and the leader nothing of health: this is where they meet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
        self._told: dict[Name, tuple[str, bool]] = {}

    def __call__(self, observed: Sequence[Observed], plan: Plan, now: float) -> Mapping[Name, str]:
        """Whom to put out, and why."""
        names, observations = observe(observed, plan, now)
        verdicts = dict(zip(names, judge(observations), strict=True))
        news = {name: v for name, v in verdicts.items() if v.state in (SLOW, HUNG)}
        for name, verdict in news.items():
            if self._told.get(name) != (verdict.state, verdict.spared):
                self._tell(Judged(name.worker_id, verdict, plan.generation))
        self._told = {name: (verdict.state, verdict.spared) for name, verdict in news.items()}
        return {name: verdict.reason for name, verdict in news.items() if verdict.state == HUNG}


def observe(observed: Sequence[Observed], plan: Plan, now: float) -> tuple[list[Name], list[Observation]]:
    """What all who have a place are at now: a stall has gone on since its record came."""
    places = {
        place.name: (index, place.since) for replica in plan.replicas for index, place in enumerate(replica.places)
    }
    names, observations = [], []
    for item in sorted(observed, key=lambda one: one.member.name):
        member = item.member
        if member.name not in places:
            continue
        coordinate, since = places[member.name]
        names.append(member.name)
        observations.append(
            Observation(
                member.worker_id,
                coordinate,
                _doing(item, now),
                holds=member.ready >= since,
                draining=member.draining,
                gone=member.dead,
            )
        )
    return names, observations


def _doing(item: Observed, now: float) -> Doing | None:
    stall = item.member.stall
    if stall is None:
        return None
    said = Doing(stall.kind, stall.phase, stall.seconds, stall.limit)
    return replace(said, seconds=stall.seconds + max(0.0, now - item.stalled))

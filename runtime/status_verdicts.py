"""What is known of each process of a job that somebody looks at, and the verdict on it.

By its agent's newest word if there is one, else by its record, which tells only of what takes unusually long.  Whether
somebody waits for it, `health.verdict` judges; what only those who look want to know is added here.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from reknit.health.straggler import RATIO
from reknit.health.verdict import ALIVE, DRAINING, SLOW, Verdict, judge
from reknit.rendezvous.looking import Sight
from reknit.rendezvous.records import LONG, SILENT, Member, Name, Place, Plan, Stall
from reknit.rendezvous.shows import GETS_ON, Shown
from reknit.rendezvous.view import Observed
from reknit.runtime.judging import observe

HEALING, UNKNOWN = "healing", "unknown"  # verdicts, beside those of health.verdict, LONG and SILENT
QUIET = 3.0  # seconds: an agent that is looked at tells more often


@dataclass(frozen=True)
class Known:
    """What is known of one process: its record, what its agent tells, and how long ago that was told (seconds)."""

    member: Member | None
    shown: Shown | None = None
    age: float = 0.0

    @property
    def committed_age(self) -> float | None:
        """Seconds since it committed a step."""
        shown = self.shown
        return None if shown is None or shown.committed_age is None else shown.committed_age + self.age

    @property
    def step(self) -> int | None:
        """The newest step that it holds."""
        if self.shown is not None:
            return self.shown.step
        return self.member.committed.step if self.member is not None and self.member.committed is not None else None


def known_of(sight: Sight, now: float) -> dict[Name, Known]:
    """What is known of each process that has a record; what an agent told before anybody looked is not."""
    shown: dict[Name, tuple[Shown, float]] = {}
    for told in sight.job.told:
        at = sight.told_at.get(told.show.agent)
        if at is not None:
            shown.update((one.name, (one, max(0.0, now - at))) for one in told.show.workers)
    return {member.name: Known(member, *shown.get(member.name, ())) for member in sight.job.members}


def judge_all(plan: Plan, known: Mapping[Name, Known], now: float) -> dict[Name, Verdict]:
    """What `health.verdict` says, by what the agents tell, or else by the records."""
    seen = [Observed(_with_stall(one), now, now, now) for one in known.values() if one.member is not None]
    names, observations = observe(seen, plan, now)
    return dict(zip(names, judge(observations), strict=True))


def _with_stall(one: Known) -> Member:
    """The record with what the process is at by its agent's newest word."""
    member, shown = one.member, one.shown
    assert member is not None
    if shown is None:
        return member
    if shown.kind == GETS_ON:
        return replace(member, stall=None)
    generation = member.stall.generation if member.stall is not None else 0
    told = Stall(generation, one.step or 0, shown.phase, shown.kind, shown.phase_seconds + one.age, shown.limit)
    return replace(member, stall=told)


def verdict_on(place: Place, one: Known, judged: Verdict | None, age: float | None, looked: float) -> tuple[str, str]:
    """One placed worker's verdict and why.  `age`: since its agent told; `looked`: for how long it has been asked."""
    member, shown = one.member, one.shown
    if member is None:
        return UNKNOWN, f"{place.name} has no record: it is gone, or its agent has lost its lease"
    if member.dead or judged is None:
        return UNKNOWN, f"{place.name} has died: the next plan goes on without it"
    if looked > QUIET and (age is None or age > QUIET):
        return SILENT, f"agent {place.agent} tells nothing"
    if judged.state not in (ALIVE, DRAINING):
        return judged.state, judged.reason
    if member.draining:
        return DRAINING, f"{place.name} leaves at a step boundary"
    if member.ready < place.since:
        return HEALING, f"{place.name} gets the job's state"
    return _by_word(place.name, member.stall, shown, age)


def _by_word(name: Name, stall: Stall | None, shown: Shown | None, age: float | None) -> tuple[str, str]:
    """The verdict on one with whom nothing is wrong that others wait for."""
    kind = shown.kind if shown is not None else stall.kind if stall is not None else GETS_ON
    if kind == LONG:
        phase = shown.phase if shown is not None else stall.phase if stall is not None else ""
        return LONG, f"{name} has announced a long phase: {phase}"
    if kind == SILENT and shown is not None:
        return SLOW, f"{name} says nothing: {shown.phase}"
    if shown is not None and shown.slowdown is not None and shown.slowdown >= RATIO:
        return SLOW, f"{name} computes {shown.slowdown:.1f} times as long as its group's median"
    return (ALIVE, "") if shown is not None and age is not None else (UNKNOWN, "its agent has not told yet")

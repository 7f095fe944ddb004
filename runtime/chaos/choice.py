"""What to strike, and when: a pure function of the seed, the situation and the time.

Of the kinds that are possible the one with the fewest faults so far comes next.  Nothing is struck before the job runs
again, nor anything without which no whole set of coordinates would be left.  The moment lies a random while (up to a
second) after the job is ready for it, so that faults fall into every phase of a step.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from reknit.rendezvous.records import Member, Name
from reknit.runtime.chaos.situation import Job

KILL, STOP, NODE = "kill", "stop", "node"
KINDS = (KILL, STOP, NODE)
SIGNALS = {KILL: signal.SIGKILL, STOP: signal.SIGSTOP, NODE: signal.SIGKILL}
JITTER_SECONDS = 1.0


@dataclass(frozen=True)
class Orders:
    """What the user asked for.  `every`: seconds from one fault to the next, at least."""

    kinds: tuple[str, ...] = KINDS
    every: float = 30.0
    seed: int = 0


@dataclass(frozen=True)
class Situation:
    """All that the choice depends on.

    `running_since`: when all of the newest plan had become ready (monotonic; None: they are not).  `reach`: the workers
    and agents on this host that may be struck.  `faults`: how many of each kind there were; `last`: when the last was.
    """

    job: Job
    running_since: float | None
    reach: Collection[Name] = ()
    agents_in_reach: Collection[str] = ()
    faults: Mapping[str, int] = field(default_factory=dict)
    last: float | None = None


@dataclass(frozen=True)
class Fault:
    """Strike these at once.  `agent`: whose node it is; empty unless the agent is struck too."""

    kind: str
    workers: tuple[Member, ...]
    agent: str = ""

    @property
    def names(self) -> tuple[Name, ...]:
        """The victims that are workers."""
        return tuple(member.name for member in self.workers)


@dataclass(frozen=True)
class Hold:
    """Strike nothing now.  `reason`: a sentence on what it waits for; empty if it is only not time yet."""

    reason: str


def choose(orders: Orders, situation: Situation, now: float) -> Fault | Hold:
    """The fault to commit now, or why there is none.  `now` is monotonic."""
    if situation.running_since is None:
        return Hold(situation.job.why_not_running())
    chance = random.Random(f"reknit-chaos/{orders.seed}/{sum(situation.faults.values())}")
    due = situation.running_since
    if situation.last is not None:
        due = max(due, situation.last + orders.every)
    if now < due + chance.random() * min(orders.every, JITTER_SECONDS):
        return Hold("")
    for kind in sorted(orders.kinds, key=lambda kind: (situation.faults.get(kind, 0), chance.random())):
        faults = [fault for fault in _faults(kind, situation) if situation.job.outlives(fault.names)]
        if faults:
            return faults[int(chance.random() * len(faults))]
    return Hold(_why_none(orders, situation))


def _faults(kind: str, situation: Situation) -> list[Fault]:
    """All faults of a kind within reach, in a fixed order."""
    living = [
        member for _, _, member in situation.job.placed() if not (member.dead or member.draining or member.finished)
    ]
    if kind != NODE:
        return [Fault(kind, (member,)) for member in sorted(living, key=_name) if member.name in situation.reach]
    found = []
    for agent in sorted({member.agent for member in living} & set(situation.agents_in_reach)):
        own = sorted((m for m in situation.job.members.values() if m.agent == agent and not m.dead), key=_name)
        if all(member.name in situation.reach for member in own):
            found.append(Fault(kind, tuple(own), agent))
    return found


def _name(member: Member) -> Name:
    return member.name


def _why_none(orders: Orders, situation: Situation) -> str:
    if not any(_faults(kind, situation) for kind in orders.kinds):
        return f"nothing of this job on this host can be struck ({', '.join(orders.kinds)})"
    return "any fault would leave no whole set of coordinates: fewer than two replicas hold one of them"

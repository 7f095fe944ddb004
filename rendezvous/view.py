"""What the leader's rules look at: what it has observed and found out, and all of that gathered once.

`plan` holds the rules themselves, `successor` makes the plan that they decide on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reknit.rendezvous.eviction import Seat, part
from reknit.rendezvous.places import Candidate, Places, choose_places
from reknit.rendezvous.records import Member, Name, Plan, Spec

NAMED = 4  # a reason names so many workers at most


@dataclass(frozen=True)
class Observed:
    """A member's record, and when this leader saw it change (seconds on its monotonic clock).

    `arrived`: when it first saw the process; `changed`: when the record last said something that the plan waits upon
    (built, draining, left, incomplete); `stalled`: when the stall in it last changed, so that a stall's present length
    is stall.seconds + (now - stalled).
    """

    member: Member
    arrived: float
    changed: float
    stalled: float = 0.0


@dataclass(frozen=True)
class Patience:
    """How long the leader waits, in seconds.

    `join_window`: for a burst of arrivals; `report_grace`: for the loss behind a report of a broken group; `burst`:
    after the plan for a loss, for further ones, and after a drain; `answer`: after the grace, for those whom a report
    names to show that they live; `holders`: for those of whom nothing is heard, and with whom the job's state would be
    lost.
    """

    join_window: float = 0.5
    report_grace: float = 0.1
    burst: float = 0.15
    answer: float = 1.0
    holders: float = 300.0


@dataclass(frozen=True)
class Findings:
    """What this leader has found out beside the records.

    `evict`: processes to put out now, each with the sentence that says why; `resting`: worker ids that get no new
    place for now; `causes`: why a lost process is lost; `lost_at`: when (seconds, the clock of `now`) this leader last
    published a plan whose outcome said `loss`; `missed`: since when (likewise) nothing is heard of processes, which may
    be gone, or only cut off from the store; `settles`: until when (likewise) those who live may have more to say than
    their records do, after an outage of the store.
    """

    evict: Mapping[Name, str] = field(default_factory=dict)
    resting: Collection[str] = ()
    causes: Mapping[Name, str] = field(default_factory=dict)
    lost_at: float = -math.inf
    missed: Mapping[Name, float] = field(default_factory=dict)
    settles: float = -math.inf


NOTHING_FOUND = Findings()


@dataclass(frozen=True)
class Outcome:
    """What to do: publish `plan`, or look again at `again` at the latest (None: when something changes); and why.

    `loss`: the plan is for a loss, so that further ones wait a little (`Findings.lost_at`).  `grave`: people should
    hear of it although there is no plan.
    """

    plan: Plan | None
    reason: str
    again: float | None = None
    loss: bool = False
    grave: bool = False


@dataclass(frozen=True)
class Past:
    """What the previous plan says of a process that had a place once."""

    coordinate: int
    placed: int
    since: int


class View:
    """Everything that the rules look at, gathered once.

    `members` are those that are here: they live, no plan has taken them for lost, and nothing that was found puts them
    out now.  `evicted` are the latter, `spared` those that it cannot put out; both with the reason.
    """

    def __init__(
        self,
        observed: Sequence[Observed],
        spec: Spec,
        previous: Plan,
        now: float,
        patience: Patience,
        findings: Findings,
    ) -> None:
        self.spec, self.previous, self.now = spec, previous, now
        self.patience, self.findings = patience, findings
        self.everybody = list(observed)
        self.past = history(previous)
        self.seated = previous.names
        living = [o for o in observed if is_here(o.member, previous, self.past)]
        asked = {o.member.name: findings.evict[o.member.name] for o in living if o.member.name in findings.evict}
        self.evicted, spared = part(asked, self.seats(living))
        self.spared = {name: f"{name} stays ({asked[name]}): {self.only_holder(name)}" for name in spared}
        here = sorted((o for o in living if o.member.name not in self.evicted), key=lambda o: o.member.name)
        self.observed = {o.member.name: o for o in here}
        self.members = [o.member for o in here]
        self.placed = [m for m in self.members if m.name in self.seated]
        self.lost = {name: past for name, past in self.past.items() if name not in self.observed}
        self.candidates = [candidate(m, self.past.get(m.name)) for m in self.members if self._may_sit(m)]
        self.head: Places = tuple(replica.names for replica in previous.replicas)

    def seats(self, observed: Iterable[Observed]) -> dict[Name, Seat]:
        """Who of them has, or had, a place, and what would go with each."""
        replicas = {name: replica.slot for replica in self.previous.replicas for name in replica.names}
        return {
            m.name: Seat(
                past.coordinate,
                m.name in self.seated,
                _standing(m, past),
                past.since,
                replicas.get(m.name),
                m.agent,
            )
            for m in (o.member for o in observed)
            if (past := self.past.get(m.name)) is not None
        }

    def _may_sit(self, member: Member) -> bool:
        """A fresh process of a worker that was put out lately waits; who had a place may hold what nobody else has.

        So does one that was here when the job stopped, until it has looked for checkpoints anew (`closing`).
        """
        if member.name in self.past:
            return True
        if self.previous.placed == 0 and member.name in self.previous.spares and member.left < self.previous.generation:
            return False
        return member.built and member.worker_id not in self.findings.resting and member.name not in self.findings.evict

    def with_evicted(self, evict: Mapping[Name, str]) -> View:
        """The same, with more to put out."""
        findings = replace(self.findings, evict={**self.findings.evict, **evict})
        return View(self.everybody, self.spec, self.previous, self.now, self.patience, findings)

    def placed_in(self, name: Name) -> int:
        """The newest generation with a place for this process; 0 for none."""
        past = self.past.get(name)
        return past.placed if past else 0

    def choose(self) -> Places:
        """Who would sit where now."""
        spec = self.spec
        formed = [replica.formed for replica in self.previous.replicas]
        return choose_places(
            self.head, self.candidates, spec.wanted, spec.axes.size, spec.min_replicas, spec.max_replicas, formed
        )

    def only_holder(self, name: Name) -> str:
        """Why this member cannot be put out."""
        return f"nobody else with a place holds the state of coordinate {self.coordinate(name)}"

    def coordinate(self, name: Name) -> str:
        """The coordinate of a process that has, or had, a place, as people read it."""
        return str(self.spec.axes.coordinate(self.past[name].coordinate))


def history(plan: Plan) -> dict[Name, Past]:
    """What a plan says of everybody who has, or had, a place."""
    past = {f.name: Past(f.coordinate, f.placed, f.since) for f in plan.former}
    for replica in plan.replicas:
        for coordinate, place in enumerate(replica.places):
            past[place.name] = Past(coordinate, plan.generation, place.since)
    return past


def is_excluded(member: Member, past: Container[Name]) -> bool:
    """Whether a plan took this process, which had a place once, for lost: it gets no place again."""
    return bool(member.ready or member.incomplete) and member.name not in past


def is_here(member: Member, previous: Plan, past: Container[Name]) -> bool:
    """Whether this process lives and no plan has put it out: only then can it get a place, or an assignment.

    `past` is `history(previous)`.
    """
    return not (member.dead or member.name in previous.evicted or is_excluded(member, past))


def _standing(member: Member, past: Past) -> int:
    """How much of the job's state this process may hold: all that was committed, something, or nothing."""
    return 2 if member.ready >= past.since else int(not member.pristine)


def candidate(member: Member, past: Past | None) -> Candidate:
    """A member as the choice of places sees it."""
    return Candidate(
        member.name,
        coordinate=past.coordinate if past else member.coordinate,
        placed=past.placed if past else 0,
        since=past.since if past else 0,
        ready=member.ready,
        draining=member.draining,
        host=member.host,
        agent=member.agent,
        team=member.team,
        versions=frozenset(v for v in (member.committed, member.prepared) if v is not None),
        restorable=frozenset(member.restorable),
    )


def some(names: Iterable[object]) -> str:
    """The first few by name, and how many more: a reason is read by people, and everybody watches it."""
    listed = sorted(str(name) for name in names)
    return ", ".join(listed[:NAMED]) + f" and {len(listed) - NAMED} more" * (len(listed) > NAMED)

"""The leader's decision: members, spec and the previous plan -> the next plan and its reason, or nothing to do yet.

One pure function, `next_plan`, looks at everything afresh each time (level-triggered), so that a leader which has just
been elected decides as its predecessor would have.  Rules 2-5 and 10 of runtime/recovery/PROTOCOL.md.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from reknit.rendezvous.places import Candidate, Places, choose_places, newest_complete, places_for
from reknit.rendezvous.records import (
    FINISHED,
    LOST,
    RUNNING,
    WAITING,
    Former,
    Member,
    Name,
    Place,
    Plan,
    Replica,
    Spec,
    Version,
)

NAMED = 4  # a reason names so many workers at most
WINDOWS = 4  # a stream of arrivals without a pause is cut after so many join windows


@dataclass(frozen=True)
class Observed:
    """A member's record, when this leader first saw the process, and when the record last changed (seconds)."""

    member: Member
    arrived: float
    changed: float


@dataclass(frozen=True)
class Patience:
    """How long the leader waits (seconds): for a burst of arrivals; for the loss behind a report of a broken group."""

    join_window: float = 0.5
    report_grace: float = 0.1


@dataclass(frozen=True)
class Outcome:
    """What to do: publish `plan`, or look again at `again` at the latest (None: when something changes); and why."""

    plan: Plan | None
    reason: str
    again: float | None = None


@dataclass(frozen=True)
class _Past:
    """What the previous plan says of a process that had a place once."""

    coordinate: int
    placed: int
    since: int


def next_plan(
    observed: Sequence[Observed], spec: Spec, previous: Plan | None, now: float, patience: Patience
) -> Outcome:
    """Decide on the next generation.  The rules in order: a finish, losses, an undecided comparison, reports, changes.

    Level-triggered: once what it returns is published, the same observations lead to nothing more.
    """
    view = _View(observed, spec, previous or Plan(0, "nothing yet", WAITING), now, patience)
    for rule in (view.refuse, view.finish, view.losses, view.undecided, view.reports, view.planned):
        outcome = rule()
        if outcome is not None:
            return outcome
    return Outcome(None, "nothing has changed")


class _View:
    """Everything that the rules look at, gathered once."""

    def __init__(
        self, observed: Sequence[Observed], spec: Spec, previous: Plan, now: float, patience: Patience
    ) -> None:
        self.spec, self.previous, self.now, self.patience = spec, previous, now, patience
        self.past = history(previous)
        self.seated = previous.names
        self.everybody = [o.member for o in observed]
        here = sorted((o for o in observed if self._is_here(o.member)), key=lambda o: o.member.name)
        self.observed = {o.member.name: o for o in here}
        self.members = [o.member for o in here]
        self.placed = [m for m in self.members if m.name in self.seated]
        self.lost = {name: past for name, past in self.past.items() if name not in self.observed}
        self.candidates = [candidate(m, self.past.get(m.name)) for m in self.members if m.built or m.name in self.past]
        self.head: Places = tuple(replica.names for replica in previous.replicas)

    def _is_here(self, member: Member) -> bool:
        """Not here: who was excluded by a plan, and will be told to start afresh."""
        return not is_excluded(member, self.past)

    # ---------------------------------------------------------------- the rules

    def refuse(self) -> Outcome | None:
        """What a leader must not build on."""
        head, size = self.previous, self.spec.axes.size
        if head.state in (FINISHED, LOST):
            return Outcome(None, head.reason)  # that run is over; what begins anew follows a blank plan (`earlier`)
        if any(len(replica.places) != size for replica in head.replicas):
            reason = f"the plan's replicas do not have {size} members: the pipe and model axes of a job cannot change"
            return Outcome(None, reason)
        known = max(self.everybody, key=_newest_known, default=None)
        if known is not None and _newest_known(known) > head.generation:
            return Outcome(
                None,
                f"{known.worker_id} knows generation {_newest_known(known)}, the newest plan here is of generation "
                f"{head.generation}: it was lost from the store and has to be written back first",
            )
        return None

    def finish(self) -> Outcome | None:
        """All who ran the newest generation have made the last step (rule 15), and no coordinate's state is missing."""
        newest = self.previous.placed
        ran = {m.name: m for m in self.members if newest and self._placed(m.name) == newest}
        coordinates = {self.past[name].coordinate for name in ran}
        if not all(m.finished for m in ran.values()) or len(coordinates) < self.spec.axes.size:
            return None
        reason = f"all {len(ran)} members have finished"
        plan = replace(self._plan((), reason), state=FINISHED, former=(), placed=0, origin=0)
        return Outcome(plan, reason)

    def losses(self) -> Outcome | None:
        """Also of members without a place now: they may still have run an older generation, beside others."""
        if not self.lost or self._settled():
            return None
        broken = max(past.placed for past in self.lost.values())
        gone = _some(self.lost)
        return self._publish(self._choose(), f"lost {gone}", broken=broken)

    def _settled(self) -> bool:
        """Nobody can still run an older generation than the newest: there, nobody can wait for anybody."""
        inside = all(name in self.observed for name in self.seated)
        return bool(self.seated) and inside and all(self._has_come(m) for m in self.members)

    def _has_come(self, member: Member) -> bool:
        if member.name in self.seated:
            return member.ready >= self.previous.generation
        return member.left >= self._placed(member.name)

    def undecided(self) -> Outcome | None:
        head = self.previous.generation
        if not any(m.incomplete == head for m in self.placed):
            return None
        silent = [m.worker_id for m in self.members if m.left < self._placed(m.name)]
        if silent:
            return Outcome(None, f"the comparison of generation {head} is incomplete; waiting for {_some(silent)}")
        return self._repair()

    def _repair(self) -> Outcome:
        """Every state is known: decide on the newest version of which a complete set lives."""
        head, size = self.previous.generation, self.spec.axes.size
        best = newest_complete(self.candidates, size)
        if best is not None:
            places = places_for(best, self.candidates, self.spec.wanted, size)
            return self._publish(places, f"the leader decides on {best}", broken=head, target=best)
        witness = [m for m in self.members if self._unbroken_since_origin(m) and m.prepared is None]
        if witness and all(m.pristine for m in self.members):
            reason = f"nobody has trained yet, as {witness[0].worker_id} shows: all start from what their scripts built"
            return self._publish(self._choose(), reason, broken=head, restore=True)
        return self._state_lost()

    def _unbroken_since_origin(self, member: Member) -> bool:
        past = self.past.get(member.name)
        return past is not None and past.placed == self.previous.generation and past.since <= self.previous.origin

    def _state_lost(self) -> Outcome:
        axes = self.spec.axes
        held = {c.coordinate for c in self.candidates if c.versions}
        missing = [str(axes.coordinate(i)) for i in range(axes.size) if i not in held]
        where = f"of coordinate (pipe.model) {', '.join(missing)}" if missing else "of one common version"
        reason = f"the state {where} is lost: everybody who held it is gone, and there is no checkpoint to go back to"
        plan = replace(self._plan((), reason), state=LOST)
        return Outcome(plan, reason)

    def reports(self) -> Outcome | None:
        head = self.previous.generation
        told = [m for m in self.placed if m.left == head]
        if not told:
            return None
        due = min(self.observed[m.name].changed for m in told) + self.patience.report_grace
        who = told[0].worker_id
        if self.now < due:
            return Outcome(None, f"{who} reports that generation {head} is broken; a loss may follow", again=due)
        return self._publish(self._choose(), f"{who} reports that a connection of generation {head} broke", broken=head)

    def planned(self) -> Outcome | None:
        if any(m.finished for m in self.placed):
            return None  # the last step is made: nobody needs more workers
        places = self._choose()
        if len(places) < self.spec.min_replicas:
            places = ()
        if set(places) == set(self.head):
            return None
        arrivals = [self.observed[name].changed for replica in places for name in replica if name not in self.past]
        if arrivals and len(places) < self.spec.wanted:
            window = self.patience.join_window
            due = min(max(arrivals) + window, min(arrivals) + WINDOWS * window)
            if self.now < due:
                return Outcome(None, "members have arrived; more may follow", again=due)
        return self._publish(places, self._change(places), restore=self.previous.placed == 0)

    def _choose(self) -> Places:
        spec = self.spec
        return choose_places(self.head, self.candidates, spec.wanted, spec.axes.size, spec.min_replicas)

    def _change(self, places: Places) -> str:
        now = {name for replica in places for name in replica}
        joined, left = now - self.seated, self.seated - now
        parts = [f"{_some(joined)} joined" if joined else "", f"{_some(left)} left" if left else ""]
        return "; ".join(part for part in parts if part) or "places changed"

    # ---------------------------------------------------------------- making a plan

    def _placed(self, name: Name) -> int:
        past = self.past.get(name)
        return past.placed if past else 0

    def _publish(
        self, places: Places, reason: str, broken: int = 0, target: Version | None = None, restore: bool = False
    ) -> Outcome:
        if len(places) < self.spec.min_replicas:
            places = ()
            reason += f"; waiting: fewer members than {self.spec.min_replicas} x {self.spec.axes.size} are here"
        return Outcome(self._plan(places, reason, broken, target, restore and bool(places)), reason)

    def _plan(
        self, places: Places, reason: str, broken: int = 0, target: Version | None = None, restore: bool = False
    ) -> Plan:
        head = self.previous
        generation = head.generation + 1
        replicas = self._replicas(places, generation)
        placed = {name for replica in places for name in replica}
        former = tuple(
            Former(name, past.coordinate, past.placed, past.since)
            for name, past in sorted(self.past.items())
            if name in self.observed and name not in placed
        )
        return Plan(
            generation,
            reason,
            state=RUNNING if places else WAITING,
            replicas=replicas,
            former=former,
            spares=tuple(m.name for m in self.members if m.name not in placed),
            broken=max(broken, head.broken),
            target=Version(generation, 0) if restore else target,
            restore=restore,
            origin=generation if restore else head.origin,
            placed=generation if places else head.placed,
        )

    def _replicas(self, places: Places, generation: int) -> tuple[Replica, ...]:
        standing = {r.names: r for r in self.previous.replicas if not self._torn(r)}
        slots = assign_slots(self.previous.replicas, places)
        replicas = []
        for slot, names in zip(slots, places, strict=True):
            formed = standing[names].formed if names in standing else generation
            replicas.append(Replica(slot, formed, tuple(self._place(name, generation) for name in names)))
        return tuple(sorted(replicas, key=lambda replica: replica.slot))

    def _torn(self, replica: Replica) -> bool:
        members = [self.observed[name].member for name in replica.names if name in self.observed]
        return any(member.torn >= replica.formed for member in members)

    def _place(self, name: Name, generation: int) -> Place:
        member, past = self.observed[name].member, self.past.get(name)
        run = past is not None and past.placed == self.previous.placed
        since = past.since if past is not None and run else generation
        return Place(name, member.host, member.address, since, member.agent)


def history(plan: Plan) -> dict[Name, _Past]:
    """What a plan says of everybody who has, or had, a place."""
    past = {f.name: _Past(f.coordinate, f.placed, f.since) for f in plan.former}
    for replica in plan.replicas:
        for coordinate, place in enumerate(replica.places):
            past[place.name] = _Past(coordinate, plan.generation, place.since)
    return past


def is_excluded(member: Member, past: Container[Name]) -> bool:
    """Whether a plan took this process, which had a place once, for lost: it gets no place again."""
    return bool(member.ready or member.incomplete) and member.name not in past


def runs(plan: Plan, members: Sequence[Member]) -> bool:
    """Whether the plan's generation runs: all its members are past the comparison, and none of them has left it.

    From then on a drained member that has no place may end, and an idle one be restarted (rule 15): before that, it may
    hold the only copy of a coordinate's state.
    """
    ready = {m.name for m in members if m.ready == plan.generation and m.left < plan.generation}
    return bool(plan.replicas) and plan.names <= ready


def _some(names: Iterable[object]) -> str:
    """The first few by name, and how many more: a reason is read by people, and everybody watches it."""
    listed = sorted(str(name) for name in names)
    return ", ".join(listed[:NAMED]) + f" and {len(listed) - NAMED} more" * (len(listed) > NAMED)


def _newest_known(member: Member) -> int:
    return max(member.ready, member.left, member.incomplete, member.torn)


def candidate(member: Member, past: _Past | None) -> Candidate:
    """A member as the choice of places sees it."""
    return Candidate(
        member.name,
        coordinate=past.coordinate if past else member.coordinate,
        placed=past.placed if past else 0,
        since=past.since if past else 0,
        ready=member.ready,
        draining=member.draining,
        host=member.host,
        versions=frozenset(v for v in (member.committed, member.prepared) if v is not None),
    )


def assign_slots(before: Sequence[Replica], places: Places) -> list[int]:
    """A slot for each replica: its old one if it stands, else the free one with which it shares most members."""
    old = {replica.names: replica.slot for replica in before}
    slots = [old.get(names, -1) for names in places]
    broken = [replica for replica in before if replica.slot not in slots]
    free = sorted({*range(len(places)), *(replica.slot for replica in broken)}.difference(slots))
    for i, names in enumerate(places):
        if slots[i] < 0:
            shared = {replica.slot: len(set(replica.names) & set(names)) for replica in broken}
            slots[i] = max(free, key=lambda slot: (shared.get(slot, 0), -slot)) if shared else free[0]
            free.remove(slots[i])
    return slots

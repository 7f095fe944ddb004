"""Whom to put out when members cannot reach each other although all of them live: pure, from their complaints alone.

In a group everybody needs everybody, so of two that cannot reach each other one must go.  Fewest go if those go first
who have trouble with most others: one member that is cut off, rather than all who miss it.  What is cut is a host, so
it is asked first with how many other agents an agent's members have trouble: a member's own peers may all be on one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from reknit.rendezvous.eviction import Seat, can_go
from reknit.rendezvous.records import Name
from reknit.rendezvous.view import some

Complaint = tuple[Name, Name]  # who could not reach whom


@dataclass(frozen=True)
class Cut:
    """Who is put out so that nobody is left who complains of anybody left.

    If that cannot be had without losing the last holder of a coordinate's state, nobody is, and `unresolved` are the
    complaints that stay in any case.
    """

    out: tuple[Name, ...]
    unresolved: tuple[Complaint, ...] = ()


def cut(complaints: Mapping[Name, Collection[Name]], seats: Mapping[Name, Seat]) -> Cut:
    """Decide, from what each member that has reported complains of, and where everybody sits.

    Complaints of, or against, somebody without a seat count for nothing.  Somebody who has reported, but complains of
    nobody, has not waited for anybody in vain: it came late, or left early, and is not put out for having been missed.
    """
    stand = {(by, of) for by, absent in complaints.items() for of in absent if {by, of} <= seats.keys()}
    content = {name for name, absent in complaints.items() if not absent}
    out: set[Name] = set()
    open_ = _Open(stand, {name: seat.agent or name.worker_id for name, seat in seats.items()})
    while open_.left:
        able = [name for name in open_.names() if can_go(name, seats, out)]
        if not able:
            return Cut((), tuple(sorted(open_.left)))
        worst = _worst(open_, able, complaints.keys(), seats, out)
        if worst in content:
            stand -= open_.drop(complaint for complaint in stand if complaint[1] == worst)
        else:
            out.add(worst)
            open_.settle_by(worst)
    return Cut(tuple(sorted(_needed(out, stand))))


class _Open:
    """The complaints between members that stay, and how much trouble each of those has; kept up as members go.

    `agents`: who looks after each member.
    """

    def __init__(self, stand: Set[Complaint], agents: Mapping[Name, str]) -> None:
        self.left = set(stand)
        self._stand = frozenset(stand)
        self._excused: set[Name] = set()
        self._of: defaultdict[Name, set[Complaint]] = defaultdict(set)
        for complaint in stand:
            for name in complaint:
                self._of[name].add(complaint)
        self.accused = Counter(of for _, of in stand)
        self.within = self.accused + Counter(by for by, _ in stand)
        self.trouble = Counter(name for pair in {frozenset(complaint) for complaint in stand} for name in pair)
        self._agents = agents
        self._between = Counter(self._parted(complaint) for complaint in stand)
        self._apart = Counter(agent for pair in self._between if len(pair) == 2 for agent in pair)

    def names(self) -> list[Name]:
        """Everybody whom an open complaint concerns."""
        return [name for name, count in self.within.items() if count > 0]

    def drop(self, complaints: Iterable[Complaint]) -> set[Complaint]:
        """Take these as settled; return those that were open."""
        dropped = self.left.intersection(complaints)
        for by, of in dropped:
            self.left.discard((by, of))
            self.accused[of] -= 1
            last = (of, by) not in self.left
            for name in (by, of):
                self.within[name] -= 1
                self.trouble[name] -= last
            pair = self._parted((by, of))
            self._between[pair] -= 1
            if len(pair) == 2 and not self._between[pair]:
                self._apart.subtract(pair)
        return dropped

    def _parted(self, complaint: Complaint) -> frozenset[str]:
        return frozenset(self._agents[name] for name in complaint)

    def apart(self, name: Name) -> int:
        """From how many other agents this member's agent is parted."""
        return self._apart[self._agents[name]]

    def settle_by(self, gone: Name) -> None:
        """Settle what is settled by this member's going: see `_remaining`."""
        self.drop(self._of[gone])
        for by in {by for by, of in self._of[gone] if of == gone} - self._excused:
            self._excused.add(by)
            self.drop(c for c in self._of[by] if c[1] == by and (by, c[0]) not in self._stand)


def _worst(
    open_: _Open, able: Collection[Name], reported: Collection[Name], seats: Mapping[Name, Seat], out: Collection[Name]
) -> Name:
    """Who goes first: is parted from most agents, and from most members, has not even reported, is in most complaints,
    came last.

    Before it is asked who came last: if part of a replica goes, better all of those in it who have trouble, so that
    another replica stays whole.
    """
    broken = {seats[name].slot for name in out} - {None}
    kept = {seats[name].slot for name in set(open_.names()).difference(able)} - {None}

    def weight(name: Name) -> tuple[int, int, bool, int, int, bool, bool, int, Name]:
        seat = seats[name]
        return (
            open_.apart(name),
            open_.trouble[name],
            name not in reported,
            open_.within[name],
            open_.accused[name],
            seat.slot in broken,
            seat.slot not in kept,
            seat.since,
            name,
        )

    return max(able, key=weight)


def _needed(out: Collection[Name], stand: Set[Complaint]) -> set[Name]:
    """Those of them who must go indeed: the first ones may turn out to have had trouble only with others who go."""
    needed = set(out)
    mutual = defaultdict(set)
    for by, of in stand:
        if (of, by) in stand:
            mutual[by].add(of)
    for name in sorted(out):
        if mutual[name] <= needed and not _remaining(stand, needed - {name}):
            needed.discard(name)
    return needed


def _remaining(stand: Set[Complaint], gone: Set[Name]) -> bool:
    """Whether complaints remain between members that stay when these have gone.

    Who could not reach somebody that goes had reason to leave, and was then missed by others: that is not its fault,
    unless it missed them too.
    """
    excused = {by for by, of in stand if of in gone}
    return any(by not in gone and of not in gone and not (of in excused and (of, by) not in stand) for by, of in stand)


def sentence(name: Name, complaints: Mapping[Name, Collection[Name]]) -> str:
    """Why this member is put out, for people."""
    by, of = [other for other, absent in complaints.items() if name in absent], complaints.get(name, ())
    parts = [f"{some(by)} cannot reach it" if by else "", f"it cannot reach {some(of)}" if of else ""]
    return f"{name} is put out: " + ", and ".join(part for part in parts if part)

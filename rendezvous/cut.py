"""Whom to put out when members cannot reach each other although all of them live: pure, from their complaints alone.

In a group everybody needs everybody, so of two that cannot reach each other one must go.  Fewest go if those go first
who have trouble with most others: one member that is cut off, rather than all who miss it.  What is cut is a host, so
it is asked first with how many other agents an agent's members have trouble: a member's own peers may all be on one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass

from reknit.rendezvous.complaints import Complaints, Holders
from reknit.rendezvous.eviction import Seat
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
    books = Complaints(complaints, seats)
    seat = dict(enumerate(seats[name] for name in books.names))
    holders = Holders(seat)
    out: set[int] = set()
    broken: set[int | None] = set()
    while any(books.open.values()):
        stuck = holders.stuck
        able = _most_apart(books, stuck)
        if not able:
            return Cut((), tuple(books.left()))
        kept = {seat[m].slot for m in stuck if books.within[m]}
        worst = _worst(able, books, seat, broken - {None}, kept - {None})
        if worst in books.content:
            books.drop_against(worst)
        else:
            out.add(worst)
            broken.add(seat[worst].slot)
            holders.go(worst)
            books.settle_by(worst)
    return Cut(tuple(books.names[m] for m in sorted(_needed(out, books))))


def _most_apart(books: Complaints, stuck: Set[int]) -> list[int]:
    """Those who can go, and whose agent is parted from most others; nobody if nobody can."""
    by_apart: defaultdict[int, list[set[int]]] = defaultdict(list)
    for agent, concerned in books.open.items():
        if concerned:
            by_apart[books.apart[agent]].append(concerned)
    able = (set().union(*by_apart[apart]) - stuck for apart in sorted(by_apart, reverse=True))
    return next((list(those) for those in able if those), [])


def _worst(
    able: list[int], books: Complaints, seat: Mapping[int, Seat], broken: Set[int | None], kept: Set[int | None]
) -> int:
    """Who of them goes first: is parted from most members, has not even reported, is in most complaints, came last.

    Before it is asked who came last: if part of a replica goes, better all of those in it who have trouble, so that
    another replica stays whole.  `broken`, `kept`: of which somebody goes already, or has trouble and cannot go.
    """
    weights: tuple[Callable[[int], int], ...] = (
        books.trouble.__getitem__,
        lambda m: m not in books.reported,
        books.within.__getitem__,
        books.accused.__getitem__,
        lambda m: seat[m].slot in broken,
        lambda m: seat[m].slot not in kept,
        lambda m: seat[m].since,
        lambda m: m,
    )
    for weight in weights:
        if len(able) > 1:
            weighed = [weight(m) for m in able]
            most = max(weighed)
            able = [m for m, own in zip(able, weighed, strict=True) if own == most]
    return able[0]


def _needed(out: Collection[int], books: Complaints) -> set[int]:
    """Those of them who must go indeed: the first ones may turn out to have had trouble only with others who go."""
    needed = set(out)
    excuses = Counter(by for of in out for by in books.missed[of])
    for m in sorted(out):
        if books.absent[m] & books.missed[m] <= needed and not _remain_with(m, needed - {m}, excuses, books):
            needed.discard(m)
            excuses.subtract(books.missed[m])
    return needed


def _remain_with(m: int, gone: Set[int], excuses: Mapping[int, int], books: Complaints) -> bool:
    """Whether complaints would remain between members that stay, if m stays too and only these have gone.

    Who could not reach somebody that goes had reason to leave, and was then missed by others: that is not its fault,
    unless it missed them too.  `excuses`: how many of those who go, m among them, each could not reach.
    """
    absent, missed = books.absent, books.missed

    def stands(by: int, of: int) -> bool:
        excused = excuses[of] > (m in absent[of])
        return by not in gone and of not in gone and not (excused and by not in absent[of])

    if any(stands(m, of) for of in absent[m]) or any(stands(by, m) for by in missed[m]):
        return True
    no_longer_excused = [of for of in missed[m] if excuses[of] == 1 and of not in gone]
    return any(stands(by, of) for of in no_longer_excused for by in missed[of])


def sentences(out: Collection[Name], complaints: Mapping[Name, Collection[Name]]) -> dict[Name, str]:
    """Why each of these members is put out, for people."""
    missed: defaultdict[Name, list[Name]] = defaultdict(list)
    for by, absent in complaints.items():
        for of in absent:
            missed[of].append(by)
    return {name: _sentence(name, missed[name], complaints.get(name, ())) for name in out}


def _sentence(name: Name, by: Collection[Name], of: Collection[Name]) -> str:
    parts = [f"{some(by)} cannot reach it" if by else "", f"it cannot reach {some(of)}" if of else ""]
    return f"{name} is put out: " + ", and ".join(part for part in parts if part)

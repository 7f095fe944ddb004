"""Who could sit where: the choice of places, pure and free of everything else that a plan says.

The rules are DESIGN.md §4's and rule 5 of §6; the state-space check in `tests/sim` runs these very functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reknit.rendezvous.records import Name, Version

Places = tuple[tuple[Name, ...], ...]  # one tuple a replica, indexed by coordinate


@dataclass(frozen=True)
class Candidate:
    """A member as the choice sees it.

    `coordinate` None: a fresh process, which fits anywhere.  `placed`, `since`: the newest generation with a place for
    it and the first of that unbroken run, 0 for none.  `ready`: newest generation that it reported itself ready in.
    """

    name: Name
    coordinate: int | None = None
    placed: int = 0
    since: int = 0
    ready: int = 0
    draining: bool = False
    host: str = ""
    versions: frozenset[Version] = frozenset()

    def fits(self, coordinate: int) -> bool:
        """A living process's coordinate never changes."""
        return self.coordinate in (coordinate, None)


def choose_places(head: Places, candidates: Sequence[Candidate], wanted: int, size: int) -> Places:
    """Place members: intact replicas stay, the others are filled with the fewest moves of state, up to `wanted`.

    `head` is who sits where now, `size` the number of coordinates.  Draining members get a place only if without them
    there would be no replica at all.  At each coordinate a current member keeps a place before any spare gets one: what
    has been committed is held by the current members alone.
    """
    held = {
        name: coordinate
        for replica in head
        for coordinate, name in enumerate(replica)
        if any(candidate.name == name and candidate.placed for candidate in candidates)
    }
    current = {c.name for c in candidates if c.name in held and c.ready >= c.since}
    chosen = _fill(head, [c for c in candidates if not c.draining], held, current, wanted, size)
    if not chosen:
        chosen = _fill(head, candidates, held, current, wanted, size)
    return tuple(_keep_current(chosen, candidates, held, current)) if chosen else ()


def _fill(
    head: Places,
    usable: Sequence[Candidate],
    held: dict[Name, int],
    current: set[Name],
    wanted: int,
    size: int,
) -> list[tuple[Name, ...]]:
    names = {c.name for c in usable}
    chosen = [replica for replica in head if all(name in names and name in held for name in replica)][:wanted]
    used = {name for replica in chosen for name in replica}
    while len(chosen) < wanted:
        replica: list[Candidate] = []
        for coordinate in range(size):
            hosts = {c.host for c in replica}
            fitting = [c for c in usable if c.name not in used and c not in replica and c.fits(coordinate)]
            if not fitting:
                return chosen
            replica.append(min(fitting, key=lambda c: _cost(c, current, hosts)))
        chosen.append(tuple(c.name for c in replica))
        used |= set(chosen[-1])
    return chosen


def _cost(c: Candidate, current: set[Name], hosts: set[str]) -> tuple[bool, int, bool, bool, Name]:
    """The order of preference: holds the state, held it last, stays, is near its replica's others."""
    return (c.name not in current, -c.placed, c.draining, bool(hosts) and c.host not in hosts, c.name)


def _keep_current(
    chosen: list[tuple[Name, ...]], candidates: Sequence[Candidate], held: dict[Name, int], current: set[Name]
) -> list[tuple[Name, ...]]:
    draining = {c.name: c.draining for c in candidates}
    for coordinate in range(len(chosen[0])):
        old = [c.name for c in candidates if c.name in current and held[c.name] == coordinate]
        if old and not any(replica[coordinate] in old for replica in chosen):
            keeper = min(old, key=lambda name: (draining[name], name))
            last = list(chosen[-1])
            last[coordinate] = keeper
            chosen[-1] = tuple(last)
    return chosen


def places_for(version: Version | None, candidates: Sequence[Candidate], wanted: int, size: int) -> Places:
    """Places around the holders of `version`, when the leader knows every state and decides."""
    chosen: list[tuple[Name, ...]] = []
    used: set[Name] = set()
    while len(chosen) < wanted:
        replica: list[Name] = []
        for coordinate in range(size):
            fitting = [c for c in candidates if c.name not in used and c.name not in replica and c.fits(coordinate)]
            if not fitting:
                return tuple(chosen)
            best = min(fitting, key=lambda c: (version not in c.versions, c.draining, c.coordinate is None, c.name))
            replica.append(best.name)
        chosen.append(tuple(replica))
        used |= set(replica)
    return tuple(chosen)


def newest_complete(candidates: Sequence[Candidate], size: int) -> Version | None:
    """The highest version for which living members hold every coordinate, committed or prepared."""
    holders: dict[Version, set[int]] = {}
    for candidate in candidates:
        if candidate.coordinate is not None:
            for version in candidate.versions:
                holders.setdefault(version, set()).add(candidate.coordinate)
    return max((version for version, found in holders.items() if len(found) == size), default=None)

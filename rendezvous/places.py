"""Who could sit where: the choice of places, pure and free of everything else that a plan says.

Rule 5 of runtime/recovery/PROTOCOL.md; the state-space check in `tests/sim` runs these very functions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from reknit.rendezvous.records import Name, Version

Places = tuple[tuple[Name, ...], ...]  # one tuple a replica, indexed by coordinate


@dataclass(frozen=True)
class Candidate:
    """A member as the choice sees it.

    `coordinate` None: a fresh process, which fits anywhere.  `placed`, `since`: the newest generation with a place for
    it and the first of that unbroken run, 0 for none.  `ready`: newest generation that it reported itself ready in.
    `team`: how many workers its `agent` starts, 0 if that is not known.  `restorable`: the steps of which it can read
    its coordinate's part of a checkpoint.
    """

    name: Name
    coordinate: int | None = None
    placed: int = 0
    since: int = 0
    ready: int = 0
    draining: bool = False
    host: str = ""
    agent: str = ""
    team: int = 0
    versions: frozenset[Version] = frozenset()
    restorable: frozenset[int] = frozenset()

    def fits(self, coordinate: int) -> bool:
        """A living process's coordinate never changes."""
        return self.coordinate in (coordinate, None)


Price = tuple[bool, int, bool, int]  # of giving a replica up; the smallest first


def price(replica: Sequence[Candidate], formed: int) -> Price:
    """What giving up a replica costs, in the order of `REASONS`; `formed`: the generation that formed it."""
    current = all(c.ready >= c.since for c in replica)
    return current, -len({c.host for c in replica}), not any(c.draining for c in replica), -formed


REASONS = ("had not come to the job's state", "on the most hosts", "with members that drain", "formed last")


def why_cheaper(given_up: Collection[Price], kept: Collection[Price]) -> str:
    """In a word what made the difference between these; "" if nothing did."""
    if not given_up or not kept:
        return ""
    differs = (i for i, (a, b) in enumerate(zip(max(given_up), min(kept), strict=True)) if a < b)
    return next((REASONS[i] for i in differs), "")


def choose_places(
    head: Places,
    candidates: Sequence[Candidate],
    wanted: int,
    size: int,
    least: int = 1,
    most: int = 0,
    formed: Sequence[int] = (),
) -> Places:
    """Place members: intact replicas stay, the others are filled with the fewest moves of state, up to `wanted`.

    `head` is who sits where now, `size` the number of coordinates, `formed` the generations that formed the replicas of
    `head` (all alike, if it is empty).  Where more stand than can stay, those go that cost least (`price`).

    Draining members get a place only if without them there would be fewer than `least` replicas, or until another one
    at their coordinate has come to the newest plan.  If nobody else has a place there, one more replica than `wanted`
    (but not than `most`) takes the state over.  At each coordinate a current member keeps a place before any spare gets
    one: they hold all that was committed.
    """
    by_name = {c.name: c for c in candidates}
    seated = [[c for replica in head if (c := by_name.get(replica[i])) and c.placed] for i in range(size)]
    held = {c.name for column in seated for c in column}
    columns = [[c for c in column if c.ready >= c.since] for column in seated]
    current = {c.name for column in columns for c in column}
    handing_over = {name for column in seated for name in _handing_over(column)}
    prices = {
        replica: price([by_name[name] for name in replica], since)
        for replica, since in zip(head, formed or [0] * len(head), strict=True)
        if held.issuperset(replica)
    }

    def fill(usable: Sequence[Candidate]) -> list[tuple[Name, ...]]:
        names = held.intersection(c.name for c in usable)
        standing = {replica: costs for replica, costs in prices.items() if names.issuperset(replica)}
        chosen = _fill(_kept(standing, wanted), usable, current, wanted, size)
        if not handing_over:
            return chosen
        # As it will be once this is published: who is seated now and gets no place then hands nothing over.
        stay = [[by_name[r[i]] for r in chosen if r[i] in held] for i in range(size)]
        alone = any(column and all(c.draining for c in column) for column in stay)
        limit = max(wanted, min(most, max(len(standing), wanted + alone)))
        return _fill(_kept(standing, limit), usable, current, limit, size) if limit > wanted else chosen

    chosen = fill([c for c in candidates if not c.draining or c.name in handing_over])
    if len(chosen) < least:
        chosen = max(chosen, fill(candidates), key=len)
    return tuple(_keep_current(chosen, columns)) if chosen else ()


def _kept(standing: Mapping[tuple[Name, ...], Price], limit: int) -> list[tuple[Name, ...]]:
    """As many of the replicas as can stay, in their order: of equals, the first."""
    dearest = set(sorted(standing, key=lambda replica: standing[replica], reverse=True)[:limit])
    return [replica for replica in standing if replica in dearest]


def _handing_over(seated: Sequence[Candidate]) -> list[Name]:
    """Who of one coordinate must stay although it drains: the state may be nowhere else.

    A new plan is one that nobody has come to yet.  So what is chosen now is chosen again just after it was published.
    """
    come = [c for c in seated if c.ready >= c.placed]
    if not all(c.draining for c in come):
        return []
    return [c.name for c in (come[:1] or seated) if c.draining]


def _fill(
    standing: Sequence[tuple[Name, ...]], usable: Sequence[Candidate], current: Collection[Name], wanted: int, size: int
) -> list[tuple[Name, ...]]:
    """More replicas beside the standing ones.  Preferred: holds the state, held it last, stays, is near the others."""
    chosen = list(standing)
    used = {name for replica in chosen for name in replica}

    def cost(c: Candidate) -> tuple[int, ...]:
        return c.name not in current, -c.placed, c.draining, c.coordinate is None

    pools = [_Pool(usable, i, cost) for i in range(size)]
    while len(chosen) < wanted:
        replica: list[Candidate] = []
        for pool in pools:
            best = pool.take(used, {c.host for c in replica})
            if best is None:
                return chosen
            replica.append(best)
        chosen.append(tuple(c.name for c in replica))
    return chosen


Cost = Callable[[Candidate], tuple[int, ...]]  # smaller is better


class _Pool:
    """Candidates for one coordinate in order of preference, so that placing thousands of them stays quick."""

    def __init__(
        self, usable: Sequence[Candidate], coordinate: int, cost: Callable[[Candidate], tuple[int, ...]]
    ) -> None:
        fitting = sorted((c for c in usable if c.fits(coordinate)), key=lambda c: (cost(c), c.name), reverse=True)
        self._cost = cost
        self._all = fitting  # the best is last
        self._by_host: dict[str, list[Candidate]] = {}
        for c in fitting:
            self._by_host.setdefault(c.host, []).append(c)

    def take(self, used: set[Name], hosts: Collection[str] = ()) -> Candidate | None:
        """The best that is not used yet (on one of `hosts`, if that costs nothing else); it is then used."""
        best = self._last(self._all, used)
        if best is None:
            return None
        near = [c for host in hosts if (c := self._last(self._by_host.get(host, []), used)) is not None]
        best = min((c for c in near if self._cost(c) == self._cost(best)), key=lambda c: c.name, default=best)
        used.add(best.name)
        return best

    @staticmethod
    def _last(stack: list[Candidate], used: set[Name]) -> Candidate | None:
        while stack and stack[-1].name in used:
            stack.pop()
        return stack[-1] if stack else None


def _keep_current(chosen: list[tuple[Name, ...]], columns: Sequence[Sequence[Candidate]]) -> list[tuple[Name, ...]]:
    """Where no current member has a place, one gets the last replica's; `columns`: the current ones by coordinate."""
    for coordinate, column in enumerate(columns):
        if column and not {c.name for c in column}.intersection(replica[coordinate] for replica in chosen):
            keeper = min(column, key=lambda c: c.draining)
            chosen[-1] = (*chosen[-1][:coordinate], keeper.name, *chosen[-1][coordinate + 1 :])
    return chosen


def places_for(version: Version | None, candidates: Sequence[Candidate], wanted: int, size: int) -> Places:
    """Places around the holders of `version`, when the leader knows every state and decides."""
    chosen: list[tuple[Name, ...]] = []
    used: set[Name] = set()

    def cost(c: Candidate) -> tuple[int, ...]:
        return version not in c.versions, c.draining, c.coordinate is None

    pools = [_Pool(candidates, i, cost) for i in range(size)]
    while len(chosen) < wanted:
        replica = [pool.take(used) for pool in pools]
        names = tuple(c.name for c in replica if c is not None)
        if len(names) < size:
            break
        chosen.append(names)
    return tuple(chosen)


def newest_complete(candidates: Sequence[Candidate], size: int) -> Version | None:
    """The highest version for which living members hold every coordinate, committed or prepared."""
    holders: dict[Version, set[int]] = {}
    for candidate in candidates:
        if candidate.coordinate is not None:
            for version in candidate.versions:
                holders.setdefault(version, set()).add(candidate.coordinate)
    complete = (version for version, found in holders.items() if found.issuperset(range(size)))
    return max(complete, default=None)


def newest_restorable(candidates: Sequence[Candidate], size: int) -> int:
    """The newest step that for each coordinate somebody can restore from a checkpoint; 0 if there is none."""
    able: list[set[int]] = [set() for _ in range(size)]
    for candidate in candidates:
        if candidate.coordinate is not None and candidate.coordinate < size:
            able[candidate.coordinate] |= candidate.restorable
    return max(set.intersection(*able), default=0)


def as_restored(candidates: Sequence[Candidate], version: Version) -> list[Candidate]:
    """The same, each with nothing but what it can restore: for `places_for`."""
    return [replace(c, versions=frozenset({version} if version.step in c.restorable else ())) for c in candidates]

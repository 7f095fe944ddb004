"""Which coordinate a fresh process should build its model for, before any plan gives it a place.

A survivor must never wait for a newcomer's model to be built.  So the leader tells a fresh member its coordinate first;
the member builds, says so (`built`), and only then can a plan give it a place.  A member that no replica needs is told
nothing and waits inside `join()`, where it fits anywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from reknit.rendezvous.places import Candidate
from reknit.rendezvous.records import Name


def assign(candidates: Sequence[Candidate], given: Mapping[Name, int], wanted: int, size: int) -> dict[Name, int]:
    """New assignments: fresh member -> coordinate, so that as many replicas as possible can be formed, up to `wanted`.

    `given` are the assignments made before.  Members of one host get neighbouring coordinates.
    """
    bound = [0] * size
    free = []
    for c in candidates:
        coordinate = c.coordinate if c.coordinate is not None else given.get(c.name)
        if coordinate is not None and not c.draining:
            bound[coordinate] += 1
        elif coordinate is None and not c.draining:
            free.append(c)
    missing = [max(0, possible_replicas(bound, len(free), wanted) - count) for count in bound]
    assigned: dict[Name, int] = {}
    for c in sorted(free, key=lambda c: (c.host, c.name)):
        if not any(missing):
            break
        coordinate = max(range(size), key=lambda i: (missing[i], -i))
        missing[coordinate] -= 1
        assigned[c.name] = coordinate
    return assigned


def possible_replicas(bound: Sequence[int], free: int, wanted: int) -> int:
    """How many whole replicas `free` members can complete, beside `bound` members at each coordinate."""
    possible = 0
    while possible < wanted and sum(max(0, possible + 1 - count) for count in bound) <= free:
        possible += 1
    return possible


def surplus(
    candidates: Sequence[Candidate], placed: Collection[Name], given: Mapping[Name, int], wanted: int, size: int
) -> tuple[Name, ...]:
    """Members without a place whom no replica needs at their coordinate, and who would complete one if restarted fresh."""
    counts = [0] * size
    idle: list[tuple[Name, int]] = []
    free = 0
    for c in (c for c in candidates if not c.draining):
        coordinate = c.coordinate if c.coordinate is not None else given.get(c.name)
        if coordinate is None:
            free += 1
            continue
        counts[coordinate] += 1
        if c.name not in placed:
            idle.append((c.name, coordinate))
    reachable = possible_replicas(counts, free, wanted)
    over = [count - min(count, reachable) for count in counts]
    better = possible_replicas([min(count, reachable) for count in counts], free + sum(over), wanted)
    if better <= reachable:
        return ()
    named: list[Name] = []
    for coordinate, count in enumerate(counts):
        here = sorted(name for name, at in idle if at == coordinate)
        named.extend(here[: max(0, count - better)])
    return tuple(named)

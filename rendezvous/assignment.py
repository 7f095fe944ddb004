"""Which coordinate a fresh process should build its model for, before any plan gives it a place.

A survivor must never wait for a newcomer's model to be built.  So the leader tells a fresh member its coordinate first;
the member builds, says so (`built`), and only then can a plan give it a place.  A member that no replica needs is told
nothing and waits inside `join()`, where it fits anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from reknit.rendezvous.places import Candidate
from reknit.rendezvous.records import Name

LATE = 5.0  # seconds after the last arrival, for those workers of a host that are known to come
WINDOWS = 4  # a stream of arrivals without a pause is cut after so many join windows


def assign(candidates: Sequence[Candidate], given: Mapping[Name, int], wanted: int, size: int) -> dict[Name, int]:
    """New assignments: fresh member -> coordinate, so that as many replicas as possible can be formed, up to `wanted`.

    `given` are the assignments made before.  An agent's members get different coordinates, and so do a host's, in
    whatever order they come: so that replicas can sit within them, and the loss of one costs few replicas.
    """
    bound, free = [0] * size, []
    taken: Counter[tuple[str, int]] = Counter()  # at an agent, and on a host
    for c in candidates:
        coordinate = _coordinate(c, given)
        if c.draining:
            continue
        if coordinate is None:
            free.append(c)
        elif 0 <= coordinate < size:
            bound[coordinate] += 1
            taken.update([(f"agent {c.agent}", coordinate), (f"host {c.host}", coordinate)])
    possible = possible_replicas(bound, len(free), wanted)
    missing = [max(0, possible - count) for count in bound]
    assigned: dict[Name, int] = {}
    for c in _most_together_first(free, candidates):
        if not any(missing):
            break
        agent, host = f"agent {c.agent}", f"host {c.host}"
        needed = [i for i in range(size) if missing[i]]
        coordinate = min(needed, key=lambda i: (taken[agent, i], taken[host, i], -missing[i], i))
        missing[coordinate] -= 1
        taken.update([(agent, coordinate), (host, coordinate)])
        assigned[c.name] = coordinate
    return assigned


def _most_together_first(free: Iterable[Candidate], candidates: Iterable[Candidate]) -> list[Candidate]:
    """Where most are together a replica fits soonest; who is alone makes one with others that are."""
    here = [c for c in candidates if not c.draining]
    agents, hosts = Counter((c.host, c.agent) for c in here), Counter(c.host for c in here)
    return sorted(free, key=lambda c: (-agents[c.host, c.agent], -hosts[c.host], c.host, c.agent, c.name))


def due(arrivals: Collection[float], window: float) -> float:
    """When a burst of arrivals (seconds, one or more) is over: after a pause of `window`, or a long stream."""
    return min(max(arrivals) + window, min(arrivals) + WINDOWS * window)


def incomplete_homes(
    candidates: Sequence[Candidate],
    arrived: Mapping[Name, float],
    given: Mapping[Name, int],
    wanted: int,
    size: int,
    now: float,
    window: float,
) -> dict[str, float]:
    """Homes new to the job of which more members may still arrive, and until when (seconds, the clock of `now`).

    Told one by one as they come, members of two hosts that start together would make replicas across hosts.  Who an
    agent starts itself, and has not come yet, is waited for a little longer than whoever else may come.  A home that
    has, or lately had, somebody with a coordinate is not new: there a fresh process replaces another one, and somebody
    waits for it.  When homes can make all `wanted` replicas within themselves there is nothing to wait for.
    """
    bound, fresh, known = [0] * size, list[Candidate](), set[str]()
    replaced = {name.worker_id for name in given}
    for c in candidates:
        coordinate = _coordinate(c, given)
        if coordinate is None:
            fresh.append(c)
        elif 0 <= coordinate < size:
            bound[coordinate] += 1
        if coordinate is not None or c.name.worker_id in replaced:
            known.add(home(c))
    able = Counter(home(c) for c in fresh if not c.draining)
    if possible_replicas(bound, 0, wanted) + sum(count // size for count in able.values()) >= wanted:
        return {}
    times: dict[str, list[float]] = {}
    for c in fresh:
        times.setdefault(home(c), []).append(arrived[c.name])
    team = {home(c): c.team for c in fresh}
    ends = {
        where: max(moments) + LATE if len(moments) < team[where] else due(moments, window)
        for where, moments in times.items()
        if where not in known
    }
    return {where: end for where, end in ends.items() if now < end}


def home(candidate: Candidate) -> str:
    """With whom a member comes: with all that its agent starts, or, if it has an agent to itself, with its host's."""
    return f"agent {candidate.agent}" if candidate.team else f"host {candidate.host}"


def _coordinate(candidate: Candidate, given: Mapping[Name, int]) -> int | None:
    """What it builds, or was told to build for."""
    return candidate.coordinate if candidate.coordinate is not None else given.get(candidate.name)


def possible_replicas(bound: Sequence[int], free: int, wanted: int) -> int:
    """How many whole replicas `free` members can complete, beside `bound` members at each coordinate."""
    possible = 0
    while possible < wanted and sum(max(0, possible + 1 - count) for count in bound) <= free:
        possible += 1
    return possible


def surplus(
    candidates: Sequence[Candidate], placed: Collection[Name], given: Mapping[Name, int], wanted: int, size: int
) -> tuple[Name, ...]:
    """Members without a place at a coordinate that has enough, who would complete a replica if restarted fresh.

    No more than it takes.  Call it only while the newest plan runs (`plan.runs`): until then, one who has no place may
    hold the only copy of its coordinate's state.
    """
    counts = [0] * size
    idle: list[tuple[int, Name]] = []
    free = 0
    for c in (c for c in candidates if not c.draining):
        coordinate = _coordinate(c, given)
        if coordinate is None:
            free += 1
        elif 0 <= coordinate < size:
            counts[coordinate] += 1
            if c.name not in placed:
                idle.append((coordinate, c.name))
    unplaced = [sum(at == coordinate for at, _ in idle) for coordinate in range(size)]

    def above(replicas: int) -> int:
        return sum(min(n, max(0, count - replicas)) for n, count in zip(unplaced, counts, strict=True))

    better = reachable = possible_replicas(counts, free, wanted)
    while better < wanted and sum(max(0, better + 1 - n) for n in counts) <= free + above(better + 1):
        better += 1
    lacking = sum(max(0, better - n) for n in counts) - free
    named: list[Name] = []
    if better > reachable:
        for coordinate, name in sorted(idle):
            if counts[coordinate] > better and len(named) < lacking:
                counts[coordinate] -= 1
                named.append(name)
    return tuple(named)

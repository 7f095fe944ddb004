"""What must hold whatever was killed, counted from what processes told and the kernel showed.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from reknit.rendezvous.records import Version
from reknit.runtime.demo.chronicle import Chronicle, Seat

Expected = Callable[[int], Sequence[int]]  # the samples of the step that begins with so many steps committed


@dataclass(frozen=True)
class Samples:
    """How many samples committed steps should have consumed, did consume, lack, and have too many."""

    expected: int
    committed: int
    missing: int
    repeated: int


@dataclass(frozen=True)
class Intact:
    """How many workers of replicas that lost nobody were compared with themselves, and how many had changed."""

    checked: int
    violations: int


@dataclass(frozen=True)
class Leaks:
    """Growth of the worst process; None where no process could be compared with itself."""

    fds: int | None
    threads: int | None


def count_samples(chronicle: Chronicle, steps: int, expected: Expected) -> Samples:
    """Compare what was consumed in committed steps 1…`steps` with what `expected` says, sample by sample.

    A step is committed if anybody committed it; then what every worker consumed for that very version counts, also of
    workers that died before they could say that they committed.  The first stage of each replica is compared with what
    is expected, every other worker with the first stage of its replica.  A sample that is not its step's counts as
    repeated.
    """
    versions = {commit.version for commit in chronicle.commits}
    consumed: dict[int, Counter[int]] = {}
    missing = repeated = 0
    for version in versions:
        for first, others in _replicas(chronicle, version):
            consumed.setdefault(version.step, Counter()).update(first)
            for other in others:
                missing += (first - other).total()
                repeated += (other - first).total()
    wanted_count = 0
    for step in range(1, max([steps, *consumed]) + 1):
        wanted, got = Counter(expected(step - 1) if step <= steps else ()), consumed.get(step, Counter())
        wanted_count += wanted.total()
        missing += (wanted - got).total()
        repeated += (got - wanted).total()
    return Samples(wanted_count, sum(counter.total() for counter in consumed.values()), missing, repeated)


def _replicas(chronicle: Chronicle, version: Version) -> Iterator[tuple[Counter[int], list[Counter[int]]]]:
    """For each replica of the version's generation: what its first stage consumed, and what every other worker did."""
    uses = chronicle.uses[version]
    rows: dict[int, dict[int, Counter[int]]] = {}
    for worker, seat in chronicle.seats.get(version.generation, {}).items():
        rows.setdefault(seat.replica, {})[seat.coordinate] = Counter(uses.get(worker, ()))
    for row in rows.values():
        empty: Counter[int] = Counter()
        yield row.get(0, empty), [row.get(coordinate, empty) for coordinate in range(1, chronicle.axes.size)]


def check_intact(chronicle: Chronicle) -> Intact:
    """After each kill, compare process, formation and in-replica group of every worker of replicas that lost nobody.

    They are compared in each generation up to the next kill; in the last of these the worker must be there.
    """
    checked = violations = 0
    for index, kill in enumerate(chronicle.kills):
        before = chronicle.generation_at(kill.t)
        following = chronicle.kills[index + 1].t if index + 1 < len(chronicle.kills) else chronicle.ended
        last = chronicle.generation_at(following)
        for worker in intact_workers(chronicle, before, kill.worker):
            for generation in sorted(g for g in chronicle.seats if before < g <= last):
                seat = chronicle.seats[generation].get(worker)
                if seat is None and generation < last:
                    continue  # a generation that was over before all were in it
                checked += 1
                violations += seat is None or _identity(seat) != _identity(chronicle.seats[before][worker])
    return Intact(checked, violations)


def intact_workers(chronicle: Chronicle, generation: int, victim: str) -> list[str]:
    """The workers of that generation whose replicas are not the victim's."""
    seats = chronicle.seats.get(generation, {})
    broken = seats[victim].replica if victim in seats else None
    return sorted(worker for worker, seat in seats.items() if seat.replica != broken)


def _identity(seat: Seat) -> tuple[int, str, str]:
    return seat.pid, seat.formation, seat.group


def compare_states(chronicle: Chronicle) -> tuple[bool, dict[str, str]]:
    """Whether all workers at each coordinate ended with the same state; and its hash, or all of them joined by " != ".

    False too if a worker of the last generation did not tell, or a coordinate has nobody.
    """
    last = chronicle.seats.get(max(chronicle.seats, default=0), {})
    hashes: dict[str, set[str]] = {str(chronicle.axes.coordinate(index)): set() for index in range(chronicle.axes.size)}
    complete = True
    for worker, seat in last.items():
        coordinate, state = chronicle.finishes.get(worker, ("", ""))
        if not state or coordinate not in hashes or seat.coordinate != list(hashes).index(coordinate):
            complete = False
        else:
            hashes[coordinate].add(state)
    identical = complete and all(len(different) == 1 for different in hashes.values())
    return identical, {coordinate: " != ".join(sorted(different)) for coordinate, different in hashes.items()}


def find_leaks(chronicle: Chronicle) -> Leaks:
    """Growth from the first full-strength generation in which a process was inspected to its last, in the worst one.

    A generation's least counts are compared: for a moment after each change, old groups are still being closed.
    Only processes that lived to the last generation count.
    """
    last = chronicle.seats.get(max(chronicle.seats, default=0), {})
    growths = []
    for pid in {seat.pid for seat in last.values()}:
        inspections = chronicle.inspections.get(pid, {})
        if len(inspections) > 1:
            before, after = _least(inspections[min(inspections)]), _least(inspections[max(inspections)])
            growths.append((after[0] - before[0], after[1] - before[1]))
    if not growths:
        return Leaks(None, None)
    return Leaks(max(fds for fds, _ in growths), max(threads for _, threads in growths))


def _least(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return min(fds for fds, _ in counts), min(threads for _, threads in counts)

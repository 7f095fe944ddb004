"""How evenly a job trains, read off its events."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from tests.faults.harness import Event

SLOWER = 2.0  # the median step may take so many times as long as before: the machine has other things to do as well
LONGEST = 1.0  # seconds between two steps; whoever waited for etcd would wait longer
LESS = 0.4  # of the steps that fit in, made in spite of stutters


@dataclass(frozen=True)
class Pace:
    """The steps committed in a span of time: how many, and the median and the longest time (s) from one to the next.

    The span's own ends count: a job that stands still at one of them has a long time there.
    """

    steps: int
    median: float
    longest: float
    seconds: float

    def __str__(self) -> str:
        times = f"median {self.median * 1e3:.0f} ms, longest {self.longest * 1e3:.0f} ms"
        return f"{self.steps} steps in {self.seconds:.1f} s: {times}"


def pace(events: Iterable[Event], begin: float, end: float) -> Pace:
    """The pace from `begin` to `end` (monotonic).  A step counts when the first worker has committed it."""
    first: dict[int, float] = {}
    for event in events:
        if event["event"] == "committed":
            first[event["step"]] = min(event["t"], first.get(event["step"], event["t"]))
    times = sorted(t for t in first.values() if begin <= t <= end)
    between = [later - earlier for earlier, later in zip([begin, *times], [*times, end], strict=True)]
    return Pace(len(times), statistics.median(between), max(between), end - begin)


def assert_as_even(during: Pace, before: Pace, what: str) -> None:
    """The job trained on through `what` as it did before."""
    told = f"through {what}: {during}; before: {before}"
    print(told)
    assert during.longest < LONGEST, told
    assert during.median < SLOWER * before.median + 0.01, told
    assert during.steps > LESS * during.seconds / before.median, told

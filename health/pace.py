"""Who is slower than the others at the same work: each rank's own time in a step, compared within its data group.

Pure; the vote carries the times from rank to rank (`runtime.recovery.ballot`).  Every few steps one brings one rank's
time, at the cost of no message: by turns the slowest one's, and that of the rank whose turn it is.  So a straggler is
soon known to all, whatever the group's size, and what it is compared with, the median, from what comes by turns.

What is compared is the median of a rank's own last steps.  Each rank is compared with its own coordinate only, since
stages differ by nature.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import NamedTuple

KEPT = 20  # own steps, of which the median is told
ENOUGH = 16  # more ranks than so many tell what is usual in a group, however large
EVERY = 4  # steps: in the others there is no time to spend on this


class Pacing(NamedTuple):
    """How slow a rank is: how many times its group's median it takes, and how much longer (seconds)."""

    rank: int
    ratio: float
    behind: float


class Pace:
    """One rank's own times, and what it has heard of the others of its data group.

    Times are in seconds of an equal share of the step, since replicas may have unequal ones.
    """

    def __init__(self) -> None:
        self._rank, self._size = 0, 1
        self._own: deque[float] = deque(maxlen=KEPT)
        self._known: dict[int, float] = {}
        self._sorted: list[tuple[float, int]] = []

    def regroup(self, rank: int, size: int) -> None:
        """The group has changed: its ranks are others now.  What this rank itself needs stays known."""
        self._rank, self._size = rank, size
        self._known, self._sorted = {}, []
        if self._own:
            self.hear(rank, self._typical())

    def add(self, seconds: float) -> None:
        """This rank's own part of the step that is about to be voted on."""
        self._own.append(seconds)

    def told(self, step: int) -> float | None:
        """What this rank tells in the vote on `step`, which is one of every EVERY; None if it is not its turn."""
        if not self._own:
            return None
        self.hear(self._rank, self._typical())
        turn, everybody = step // EVERY // 2, step // EVERY % 2 == 1
        return self._known.get(self._rank) if everybody or turn % self._size == self._rank else None

    def hear(self, rank: int, seconds: float) -> None:
        """A rank's time, as it stands now."""
        if not 0 <= rank < self._size or not seconds > 0:
            return
        before = self._known.get(rank)
        if before == seconds:
            return
        if before is not None:
            del self._sorted[bisect_left(self._sorted, (before, rank))]
        self._known[rank] = seconds
        insort(self._sorted, (seconds, rank))

    @property
    def own(self) -> Pacing | None:
        """This rank beside the group's median (of two, the quicker one's); None while too few are known."""
        median, own = self._median(), self._known.get(self._rank)
        return None if median is None or own is None else Pacing(self._rank, own / median, own - median)

    @property
    def slowest(self) -> Pacing | None:
        """The slowest rank that is known; None while too few are."""
        median = self._median()
        if median is None:
            return None
        seconds, rank = self._sorted[-1]
        return Pacing(rank, seconds / median, seconds - median)

    def _typical(self) -> float:
        """The median of this rank's own last steps."""
        return sorted(self._own)[(len(self._own) - 1) // 2]

    def _median(self) -> float | None:
        """Of two the lower one: else nobody of two could be slower than twice the median.

        Of hundreds, one after the other tells its time: a few tens say well enough what is usual.
        """
        count = len(self._sorted)
        return self._sorted[(count - 1) // 2][0] if 2 * count > min(self._size, 2 * ENOUGH) else None

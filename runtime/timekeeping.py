"""A worker's own time in each step, what the vote tells of the others', and what its agent is told of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reknit.health.pace import EVERY, Pace
from reknit.runtime.recovery.ballot import decode, encode
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.stopwatch import Stopwatch

PER_ONE = 1000  # a slowdown in a round of the replica is a whole number of thousandths


class Timekeeper:
    """One worker's times, step by step.  Cheap: a few microseconds a step, and no message."""

    def __init__(self) -> None:
        self.stopwatch = Stopwatch()
        self._pace = Pace()
        self._groups: Groups | None = None
        self._generation = 0
        self._names: list[str] = []
        self._mates: list[str] = []
        self._due = False  # whether this step is one of those that compare
        self._slowdown: float | None = None
        self._slowest: tuple[str, float] | None = None
        self._own = self._wait = 0.0

    def begin(self, groups: Groups) -> None:
        """An attempt begins."""
        if groups is not self._groups:
            self._groups, self._generation = groups, groups.generation
            self._names = [name.worker_id for name in groups.peers]
            self._mates = [name.worker_id for name in groups.replica.names]
            self._slowdown = self._slowest = None
            self._pace.regroup(groups.data_rank, len(self._names))
        self.stopwatch.begin()

    def reduced(self, share: float) -> None:
        """The step is prepared; `share`: what this worker had to do, over an equal share.

        Who has less is not expected to be quicker, as not all work grows with the samples.
        """
        self._wait = self.stopwatch.since_stop()
        self._own = self.stopwatch.own()
        self._pace.add(self._own / max(1.0, share))

    def ballot(self, known: int, rank: int, step: int) -> int:
        """This worker's word in the vote on `step` within its data group; `known`: its newest generation."""
        self._due = step % EVERY == 0
        return encode(known - self._generation, rank, self._pace.told(step) if self._due else None)

    def hear(self, word: int) -> int:
        """What the vote says: the newest generation that all of the data group know."""
        ballot = decode(word)
        if ballot.rank is not None:
            self._pace.hear(ballot.rank, ballot.seconds)
            self._slowdown = self._pace.slowdown
        return self._generation + ballot.ahead

    @property
    def slowdown(self) -> int:
        """This worker's slowdown in thousandths, as its replica is told; 0 if it is not known."""
        return 0 if self._slowdown is None else round(self._slowdown * PER_ONE)

    def voted(self, slowdowns: Sequence[int], seconds: float) -> None:
        """The replica's round has brought each mate's slowdown; the whole vote took so many seconds."""
        self._wait += seconds
        if not self._due:
            return
        slowest = self._pace.slowest
        self._slowest = None if slowest is None else (self._names[slowest.rank], slowest.ratio)
        if len(slowdowns) > 1 and (ratio := max(slowdowns)) > 0:
            mate = self._mates[slowdowns.index(ratio)], ratio / PER_ONE
            self._slowest = mate if self._slowest is None else max(self._slowest, mate, key=lambda one: one[1])

    def fields(self) -> dict[str, Any]:
        """What goes with a committed step: seconds of `own` work and of `wait` for the others in reduction and vote.

        Every few steps, once they are known: this worker's `slowdown`, and of all in its groups the `slowest`: who, and
        how slow.
        """
        told: dict[str, Any] = {"own": round(self._own, 6), "wait": round(self._wait, 6)}
        if self._due and self._slowdown is not None:
            told["slowdown"] = round(self._slowdown, 3)
        if self._due and self._slowest is not None:
            told["slowest"] = [self._slowest[0], round(self._slowest[1], 3)]
        return told

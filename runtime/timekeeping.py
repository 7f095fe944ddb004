"""A worker's own time in each step, what the vote tells of the others', and what its agent is told of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from reknit.health.pace import EVERY, Pace, Pacing
from reknit.runtime.recovery.ballot import decode, encode
from reknit.runtime.recovery.groups import Groups
from reknit.runtime.stopwatch import Stopwatch

THOUSAND, MILLION = 1000, 1_000_000  # in a round of the replica, all are whole numbers


class Told(NamedTuple):
    """Who is how slow: over the median of its like, and seconds behind it."""

    name: str
    ratio: float
    behind: float


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
        self._compared: Pacing | None = None  # this worker itself
        self._slowest: Told | None = None
        self._own = self._wait = 0.0

    def begin(self, groups: Groups) -> None:
        """An attempt begins."""
        if groups is not self._groups:
            self._groups, self._generation = groups, groups.generation
            self._names = [name.worker_id for name in groups.peers]
            self._mates = [name.worker_id for name in groups.replica.names]
            self._compared = self._slowest = None
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
            self._compared = self._pace.own
        return self._generation + ballot.ahead

    def words(self) -> tuple[int, int]:
        """How slow this worker is, as its replica is told: thousandths of the median, microseconds; 0: not known."""
        own = self._compared
        return (0, 0) if own is None else (round(own.ratio * THOUSAND), round(own.behind * MILLION))

    def voted(self, said: Sequence[tuple[int, ...]], seconds: float) -> None:
        """The replica's round has brought each mate's words; the whole vote took so many seconds."""
        self._wait += seconds
        if not self._due:
            return
        found = []
        if (slowest := self._pace.slowest) is not None:
            found.append(Told(self._names[slowest.rank], slowest.ratio, slowest.behind))
        if len(said) > 1:
            found += [Told(n, w[0] / THOUSAND, w[1] / MILLION) for n, w in zip(self._mates, said, strict=True) if w[0]]
        self._slowest = max(found, key=lambda one: one.ratio, default=None)

    def fields(self) -> dict[str, Any]:
        """What goes with a committed step: seconds of `own` work and of `wait` for the others in reduction and vote.

        Every few steps, once they are known: this worker's `slowdown`, and of all in its groups the `slowest`: who, how
        many times its group's median it takes, and how much longer.
        """
        told: dict[str, Any] = {"own": round(self._own, 6), "wait": round(self._wait, 6)}
        if self._due and self._compared is not None:
            told["slowdown"] = round(self._compared.ratio, 3)
        if self._due and self._slowest is not None:
            told["slowest"] = [self._slowest.name, round(self._slowest.ratio, 3), round(self._slowest.behind, 6)]
        return told

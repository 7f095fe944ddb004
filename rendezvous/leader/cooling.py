"""How long a worker that was put out, although it may live, has to wait before it gets a place again.

The counts are in the plan (`Plan.offences`), the times are this leader's own: they begin when it published the plan,
or, after a change of leader, when it first saw the count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

LONGEST = 300.0  # seconds of rest at most
FORGIVEN = 600.0  # seconds in a place after which a worker's offences are forgotten; without one, twice as long


class Cooling:
    """The rests of all offenders, by worker.  `detect` (seconds): the first rest; each later one is twice as long."""

    def __init__(self, detect: float) -> None:
        self._detect = detect
        self._counts: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._placed: dict[str, float] = {}

    def see(self, offences: Mapping[str, int], placed: Collection[str], now: float) -> None:
        """Take in the counts of the newest plan, and who has a place in it."""
        # The plan that took its place from one that was forgiven counts anew: it tells of it only for a new offence.
        anew = self.forgiven(now).intersection(self._placed).difference(placed)
        for worker_id, count in offences.items():
            if count > self._counts.get(worker_id, 0) or worker_id in anew:
                self._since[worker_id] = now
        self._counts = dict(offences)
        self._since = {worker_id: since for worker_id, since in self._since.items() if worker_id in offences}
        self._placed = {w: self._placed.get(w, now) for w in offences if w in placed}

    def resting(self, now: float) -> dict[str, float]:
        """Who has to wait, and until when."""
        ends = {worker_id: since + self._rest(self._counts[worker_id]) for worker_id, since in self._since.items()}
        return {worker_id: end for worker_id, end in ends.items() if now < end}

    def forgiven(self, now: float) -> set[str]:
        """Whose offences are to be forgotten: else a plan would tell for ever of workers that never come back."""
        proven = {worker_id for worker_id, since in self._placed.items() if now - since >= FORGIVEN}
        away = self._since.keys() - self._placed.keys()
        return proven | {worker_id for worker_id in away if now - self._since[worker_id] >= 2 * FORGIVEN}

    def sentence(self, worker_id: str, end: float, now: float) -> str:
        """What is said of one that rests until `end`."""
        count = self._counts[worker_id]
        times, seconds = "once" if count == 1 else f"{count} times", math.ceil(end - now)
        return f"{worker_id} was put out {times}; it rests for {seconds} more second{'s' * (seconds != 1)}"

    def _rest(self, count: int) -> float:
        return min(LONGEST, self._detect * 2.0 ** min(count - 1, 30))

"""From what each step's vote tells of the slowest: who is a straggler, named as it becomes one and when it ends.

Pure; steps and time (monotonic seconds) are passed in.  A straggler is never put out for it: it lets others wait, but
it gets on (`verdict` judges who does not).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

RATIO, BEHIND = 1.5, 0.01  # of its coordinate's median, and seconds: less than that is the noise of a busy host
STEPS, SECONDS = 20, 5.0  # for so many steps, and so long, it must have been so


class Slow(NamedTuple):
    """A worker: how many times its coordinate's median it takes, and how much longer (seconds)."""

    name: str
    ratio: float
    behind: float


@dataclass
class _Told:
    """What one worker tells: whom, if anybody, it has called slow since `step` and `since`; who is its straggler."""

    slow: str | None
    step: int
    since: float
    straggler: str | None = None


class Stragglers:
    """Those whom the workers of one agent know of."""

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}

    def hear(self, teller: str, slowest: Slow, step: int, now: float) -> list[str]:
        """Who at `step` is the slowest in the groups of the worker `teller`; returns the sentences to say, if any."""
        slow = slowest.name if slowest.ratio >= RATIO and slowest.behind >= BEHIND else None
        told = self._told.setdefault(teller, _Told(slow, step, now))
        if slow != told.slow or step < told.step:
            told.slow, told.step, told.since = slow, step, now
        if slow == told.straggler or step - told.step < STEPS or now - told.since < SECONDS:
            return []
        before, sentences = told.straggler, []
        told.straggler = None
        if before is not None and before not in self.names:
            sentences.append(f"{before} is no straggler any more")
        if slow is not None and slow not in self.names:
            count, ratio = step - told.step, slowest.ratio
            sentences.append(
                f"{slow} is a straggler: for {count} steps it has taken {ratio:.1f} times as long as others at "
                "the same place for its own work, and they wait for it"
            )
        told.straggler = slow
        return sentences

    def forget(self, teller: str) -> None:
        """This worker's process has ended."""
        self._told.pop(teller, None)

    @property
    def names(self) -> frozenset[str]:
        """Who is a straggler now."""
        return frozenset(told.straggler for told in self._told.values() if told.straggler is not None)

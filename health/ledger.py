"""What became of a worker's time: which seconds led to committed steps, and what the others were lost to.

Pure; fed with what happens and when (monotonic seconds).  Every second since the first is counted once, as soon as it
is known what it was: work counts with the commit that it led to, or, if a membership change threw it away, as lost to
the retry.
"""

from __future__ import annotations

from collections import defaultdict

from reknit.health.families import CAUSES

START, WAIT, SPARE, REINIT, HEAL, RETRY, CHECKPOINT, DRAIN = CAUSES
_WORK, _OVER = "work", "over"  # what a worker is at when nothing is lost, or nothing counts any more


class Ledger:
    """One worker's time, over all its processes.  `productive` and `lost` are in seconds."""

    def __init__(self, now: float) -> None:
        self.productive = 0.0
        self.lost: defaultdict[str, float] = defaultdict(float)
        self._settled = now
        self._at = START
        self._left_at: float | None = None  # when it heard that its present attempt may be in vain
        self._next: str | None = None  # what follows its work, if it has lost its place
        self._thrown = 0.0  # work that is in vain, unless its step is rolled forward
        self._paused = 0.0  # of the time to the next commit, for a checkpoint

    @property
    def at(self) -> str:
        """What it is at: a cause of lost seconds, "work", or "over"."""
        return self._at

    @property
    def lost_by_the_job(self) -> float:
        """All that is lost, but for the time of a spare, which nobody needs."""
        return sum(seconds for cause, seconds in self.lost.items() if cause != SPARE)

    # ---------------------------------------------------------------- what happens

    def begin(self, now: float, *, trains: bool = False) -> None:
        """A process starts in the worker's place, or was there when its agent came and `trains` already."""
        self._pass(now)
        self._enter(_WORK if trains else START)

    def builds(self, now: float) -> None:
        """It has been told for which coordinate, and builds its model."""
        if self._at not in (_WORK, _OVER):
            self._pass(now)
            self._enter(START)

    def has_no_place(self, now: float, *, spare: bool = False, draining: bool = False) -> None:
        """It has come, or been built, or a plan leaves it out; one that works leaves at the end of its step.

        `spare`: the others train without it.
        """
        following = DRAIN if draining else SPARE if spare else WAIT
        if self._at == _WORK:
            self._next = following
        elif self._at != _OVER:
            self._pass(now)
            self._enter(following)

    def has_place(self, now: float) -> None:
        """A plan gives it a place; one that works has it already, and tells itself when it moves on."""
        self._next = None
        if self._at not in (_WORK, _OVER):
            self._pass(now)
            self._enter(REINIT)

    def must_leave(self, now: float) -> None:
        """It has heard that its generation is over: what it does now may be in vain."""
        if self._at == _WORK and self._next is not None:
            self.left(now)
        elif self._at == _WORK and self._left_at is None:
            self._left_at = now

    def left(self, now: float) -> None:
        """Its attempt has ended without a commit."""
        if self._at == _WORK:
            self._stop_work(now)
            self._enter(self._next or REINIT)

    def arrived(self, now: float) -> None:
        """It has come to its generation, and works."""
        if self._at == _OVER:
            return
        self._stop_work(now)
        self._pass(now)
        self.lost[RETRY] += self._thrown
        self._thrown = 0.0
        self._enter(_WORK)

    def committed(self, now: float, *, rolled_forward: bool = False) -> None:
        """It has committed a step; `rolled_forward`: on the way into a generation, the work was done before."""
        if rolled_forward:
            self._pass(now)
            self.productive += self._thrown
            self._thrown = 0.0
            return
        if self._at == _OVER:
            return
        seconds = self._advance(now)
        pause = min(self._paused, seconds)
        self._paused -= pause
        if pause:
            self.lost[CHECKPOINT] += pause
        self.productive += seconds - pause
        if self._at not in (WAIT, SPARE, DRAIN, _OVER):
            self._at, self._left_at = _WORK, None

    def healed(self, now: float, seconds: float) -> None:
        """For so long, until now, it has received its state."""
        if self._at not in (_WORK, _OVER):
            self._pass(now - seconds)
            self.lost[HEAL] += self._advance(now)

    def paused(self, seconds: float) -> None:
        """Its training stood still for so long, to copy the state for a checkpoint."""
        if self._at != _OVER:
            self._paused += seconds

    def died(self, now: float) -> None:
        """Its process has ended; another may take its place."""
        if self._at == _OVER:
            return
        self._stop_work(now)
        self._pass(now)
        self.lost[RETRY] += self._thrown
        self._thrown = self._paused = 0.0
        self._enter(START)

    def end(self, now: float) -> None:
        """It has finished, or has gone for good: from now on nothing counts."""
        if self._at == _WORK:
            self.productive += self._advance(now)
        self._pass(now)
        self._enter(_OVER)

    def pass_time(self, now: float) -> None:
        """Count what is known by now to be lost."""
        if self._at != _WORK:
            self._pass(now)

    # ---------------------------------------------------------------- within

    def _enter(self, what: str) -> None:
        self._at, self._left_at, self._next = what, None, None

    def _advance(self, now: float) -> float:
        seconds = max(0.0, now - self._settled)
        self._settled = max(self._settled, now)
        return seconds

    def _pass(self, now: float) -> None:
        """The time until now went by as it is at present.  Of work that nobody told the end of, it is not known how."""
        seconds = self._advance(now)
        if seconds and self._at != _OVER:
            self.lost[RETRY if self._at == _WORK else self._at] += seconds

    def _stop_work(self, now: float) -> None:
        """What it worked since its last commit was in vain; since it heard of that it has been under way."""
        if self._at == _WORK:
            self._thrown += self._advance(min(now, self._left_at if self._left_at is not None else now))
            self._at = REINIT
            self._pass(now)

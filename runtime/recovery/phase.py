"""What the training thread is at, and since when: kept for a few writes of an attribute, read by the pulse's thread.

Whoever lets others wait is told from those who wait by this alone, so it is decided with care: by what the code says
that it is about to do, and by which code the thread is in.  A loop in the script's own load_state_dict is no waiting.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

import torch.distributed

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import BUSY, LONG, WAITS

MEDIAN_STEPS = 10  # so many median steps are no hang
FIRST_STEP = 10  # the first step of a process may take so many times longer: it may compile
STEPS_KEPT = 20

_REKNIT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_STANDARD = os.path.dirname(os.path.abspath(threading.__file__))
OURS = (f"{_REKNIT}/",)
WAITING = (f"{_TORCH}/distributed/", f"{_REKNIT}/communicator/")
# What is in there takes its time, but waits for nobody: for the disk, or until the device has finished its kernels.
WORKING = (f"{_TORCH}/distributed/checkpoint/", f"{_REKNIT}/communicator/staging.py")
# A thread that is in one of these waits on behalf of the caller.
SEEN_THROUGH = (*(f"{_STANDARD}/{name}.py" for name in ("threading", "queue", "selectors")), f"{_TORCH}/_ops.py")

SCRIPT = "script"  # the script's own code runs, which may communicate, and may be excused
SHARED = "shared"  # reknit's code works and waits by turns
PATIENT = "patient"  # reknit's code does nothing but wait for others


class At(NamedTuple):
    """`name` since `since` (time.monotonic); `scope` is SCRIPT, SHARED or PATIENT."""

    name: str
    scope: str
    since: float


class Excuse(NamedTuple):
    """A phase that the script has announced: others may wait for it, until `until` (time.monotonic)."""

    what: str
    since: float
    until: float


class Stuck(NamedTuple):
    """What the agent is told: `kind` is WAITS, BUSY or LONG; seconds."""

    phase: str
    kind: str
    seconds: float
    limit: float


class Phase:
    """What the training thread is at.  It alone writes, one attribute at a time, so nobody needs a lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.thread = threading.get_ident()
        self.at = At("its start", SCRIPT, clock())
        self.excuse: Excuse | None = None
        self.progress = self.at.since  # the last committed step, or becoming ready, or getting a place
        self.step_seconds: deque[float] = deque(maxlen=STEPS_KEPT)

    def enter(self, name: str, scope: str = SCRIPT) -> None:
        """From now on the calling thread is at this."""
        self.thread = threading.get_ident()
        self.at = At(name, scope, self._clock())

    def progressed(self) -> None:
        """This worker has come to its generation, or has got a place: what it waited for before is over."""
        self.progress = self._clock()

    def committed(self) -> None:
        """A step is made; how long it took counts from the one before, or from becoming ready."""
        now = self._clock()
        self.step_seconds.append(now - self.progress)
        self.progress = now

    @contextlib.contextmanager
    def long(self, what: str, limit: float | None = None) -> Iterator[None]:
        """Inside of it this worker is excused, for `limit` seconds at most.  ReknitError for a limit that is none."""
        if limit is not None and not limit > 0:
            raise ReknitError(f"the limit of the long phase {what!r} must be more than 0 seconds, not {limit}")
        before, begun = self.excuse, self._clock()
        self.excuse = Excuse(str(what)[:80], begun, begun + limit if limit is not None else float("inf"))
        try:
            yield
        finally:
            self.excuse = before
            self.at = self.at._replace(since=self._clock())  # what follows has only begun


class Watch:
    """Looks at a phase again and again; tells how long its thread has been waiting, or busy, without a break."""

    def __init__(self, phase: Phase, hang: float, files: Callable[[int], Sequence[str]]) -> None:
        self._phase, self._hang, self._files = phase, hang, files
        self._idle = 0.0  # when it was last seen waiting
        self._worked = 0.0  # when it was last seen doing anything else, for longer than a moment

    def look(self, now: float, moment: float) -> Stuck | None:
        """What the thread is at, and for how long without a break; None if it got on within a `moment` (seconds).

        Short phases that follow each other without any progress are told of, too: silence would look like a hang.
        """
        phase = self._phase
        at, excuse = phase.at, phase.excuse
        if now - phase.progress < moment:
            return None  # it gets on: no need to look at its frames
        files = self._files(phase.thread)
        if not files:
            return None  # the thread has ended
        kind, name = kind_of(at, excuse, files, now), at.name
        if kind == WAITS:
            self._idle = now
            since = max(phase.progress, self._worked)
        elif kind == LONG:
            assert excuse is not None
            name, since, self._worked = excuse.what, excuse.since, now
        else:
            over = excuse.until if excuse is not None else 0.0
            since = max(at.since, self._idle, over)
            if now - since >= moment:
                self._worked = now
        return Stuck(name, kind, max(0.0, now - since), limit_of(kind, self._hang, tuple(phase.step_seconds)))


def kind_of(at: At, excuse: Excuse | None, files: Sequence[str], now: float) -> str:
    """WAITS, LONG or BUSY.  `files`: of the thread's frames, innermost first."""
    innermost = next((file for file in files if file not in SEEN_THROUGH), "")
    waits = waits_in(innermost, at.scope)
    if excuse is not None and now < excuse.until and (at.scope == SCRIPT or not waits):
        return LONG
    return WAITS if waits else BUSY


def waits_in(file: str, scope: str) -> bool:
    """Whether a thread whose innermost frame is in this file waits for others.

    A thread that waits for its device (`loss.item()`, torch.cuda.synchronize) does not: the device may compute, hang,
    or wait for another stage's, which no frame tells.  `health.verdict` spares it as long as a mate may be at fault.
    """
    if file.startswith(WORKING):
        return False
    return file.startswith(WAITING) or (scope == PATIENT and file.startswith(OURS))


def limit_of(kind: str, hang: float, step_seconds: Sequence[float]) -> float:
    """After how many seconds of waiting for somebody that one counts as hung, as far as this worker's steps tell."""
    if not step_seconds:
        return hang * FIRST_STEP if kind == BUSY else hang
    return max(hang, MEDIAN_STEPS * median(step_seconds))

"""Who is alive, slow or hung: decided from what all placed workers are at, and for how long.

Pure, and without any knowledge of where the observations come from.  A group of workers that waits shows no culprit by
itself: whoever waits in a collective is a victim.  So only a worker is judged for which somebody waits, that does not
wait itself, and that has not announced a long phase.  It is slow at first, and hung when the others have waited for it
for so long as no step of theirs explains: what they have waited for somebody else before is not its fault.  A worker of
which nothing is observed is well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIVE, SLOW, HUNG, DRAINING = "alive", "slow", "hung", "draining"
WAITS, BUSY, LONG, SILENT = "waits", "busy", "long", "silent"
SLOW_PART = 1 / 6  # of the limit
NAMED = 3  # who waits is listed up to this many


@dataclass(frozen=True)
class Doing:
    """What a worker has been at for `seconds`: it WAITS for others, is BUSY, in a LONG phase, or SILENT.

    `limit`: after how many seconds of waiting for somebody, by this worker's own steps, that one counts as hung.
    `step`: its committed steps.  `finished`: its loop has ended, so it only waits for those who are behind it: one that
    still saves its model keeps nobody from anything.
    """

    kind: str
    phase: str
    seconds: float
    limit: float
    step: int = 0
    finished: bool = False


@dataclass(frozen=True)
class Observation:
    """One living worker that has a place.  `doing` None: nothing that takes long.

    `coordinate`: workers of the same coordinate hold the same state; `holds`: it has that state (a newcomer may not).
    """

    worker: str
    coordinate: int
    doing: Doing | None = None
    holds: bool = True
    draining: bool = False


@dataclass(frozen=True)
class Verdict:
    """What a worker is and why, in one sentence.  `spared`: it would be hung if anybody could take its place."""

    worker: str
    state: str
    reason: str
    spared: bool = False


def judge(observations: Sequence[Observation]) -> list[Verdict]:
    """A verdict for each observation, in the same order.

    Never all holders of a coordinate's state are hung: the last one is spared, as its state would go with it.
    """
    waiters = [o for o in observations if o.doing is not None and o.doing.kind == WAITS]
    late = [o for o in observations if _lateness(o, waiters) >= 1]
    hung: set[str] = set()
    for suspect in sorted(late, key=_patience):
        if any(_relieves(other, suspect) for other in observations if other.worker not in hung):
            hung.add(suspect.worker)
    return [_verdict(o, waiters, hung) for o in observations]


def _verdict(observed: Observation, waiters: Sequence[Observation], hung: set[str]) -> Verdict:
    lateness = _lateness(observed, waiters)
    if observed.worker in hung:
        return Verdict(observed.worker, HUNG, f"{observed.worker} hangs: {_sentence(observed, waiters)}")
    if lateness >= 1:
        alone = "; it is left, as nobody else holds the state of its coordinate"
        sentence = f"{observed.worker} seems to hang: {_sentence(observed, waiters)}{alone}"
        return Verdict(observed.worker, SLOW, sentence, spared=True)
    if lateness >= SLOW_PART:
        return Verdict(observed.worker, SLOW, f"{observed.worker} is slow: {_sentence(observed, waiters)}")
    if observed.draining:
        return Verdict(observed.worker, DRAINING, f"{observed.worker} is draining")
    if observed.doing is not None and observed.doing.kind == LONG:
        return Verdict(observed.worker, ALIVE, f"{observed.worker} has announced a long phase")
    return Verdict(observed.worker, ALIVE, f"{observed.worker} is well")


def _lateness(observed: Observation, waiters: Sequence[Observation]) -> float:
    """How much of its limit the others have waited for it; 0 for one that is not judged."""
    own = observed.doing
    if own is None or own.kind not in (BUSY, SILENT) or not (waiting := _waiting(own, waiters)):
        return 0.0
    limit = max(own.limit, *(doing.limit for _, doing in waiting))
    waited = min(own.seconds, max(doing.seconds for _, doing in waiting))
    return waited / limit if limit > 0 else 1.0


def _waiting(own: Doing, waiters: Sequence[Observation]) -> list[tuple[str, Doing]]:
    """Those of the waiters who wait for one that is at `own`, which is no waiting itself."""
    found = ((other.worker, other.doing) for other in waiters)
    return [
        (worker, doing)
        for worker, doing in found
        if doing is not None and (not doing.finished or own.step < doing.step)
    ]


def _patience(observed: Observation) -> tuple[float, float, str]:
    """Whom to put out first, so that the same one is named however much later one looks."""
    assert observed.doing is not None
    return observed.doing.limit, -observed.doing.seconds, observed.worker


def _relieves(other: Observation, suspect: Observation) -> bool:
    """Whether `other` keeps the state of the suspect's coordinate when the suspect is put out."""
    same = other.worker != suspect.worker and other.coordinate == suspect.coordinate
    return same and (other.holds or not suspect.holds)


def _sentence(observed: Observation, waiters: Sequence[Observation]) -> str:
    own = observed.doing
    assert own is not None
    waiting = _waiting(own, waiters)
    names = sorted(worker for worker, _ in waiting)
    listed = ", ".join(names[:NAMED]) + f" and {len(names) - NAMED} more" * (len(names) > NAMED)
    at = f"in {own.phase}" if own.kind == BUSY else f"silent ({own.phase})"
    verb = "waits" if len(names) == 1 else "wait"
    longest = max(doing.seconds for _, doing in waiting)
    return f"{at} for {own.seconds:.0f} s, while {listed} {verb} (since {longest:.0f} s)"

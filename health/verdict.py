"""Who is alive, slow or hung: decided from what all placed workers are at, and for how long.

Pure, and without any knowledge of where the observations come from.  A group of workers that waits shows no culprit by
itself: whoever waits in a collective is a victim.  So only a worker is judged for which somebody waits, that does not
wait itself, and that has not announced a long phase.  It is slow at first, and hung when the others have waited for it
for so long as no step of theirs explains: what they have waited for somebody else before is not its fault.  A worker of
which nothing is observed is well.

Within a replica it is not as clear who waits.  With NCCL a stage whose script asks for a number (`loss.item()`) waits
for its device, and that for the stage's neighbour: from outside the one looks as BUSY as the other.  So a BUSY worker
is judged only for as long as each of its mates may have waited for it: by WAITING, or by being BUSY itself, but for
less long.  Beside a mate that is SILENT, in a LONG phase, or BUSY for longer it is spared, until that one gets on or
is out.

What this cannot tell: which of two mates that became BUSY at once, as their attempt began, lets the other wait.  Then
it guesses, and a healthy process may be put out first; never both, so the other one is judged when somebody waits for
it again.  Nor can it tell a stage whose own device hangs from one whose device waits.
"""

from __future__ import annotations

from collections import defaultdict
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
    `replica`: workers of the same one are mates, who wait for each other within a step; None for one without mates.
    """

    worker: str
    coordinate: int
    doing: Doing | None = None
    holds: bool = True
    draining: bool = False
    replica: int | None = None


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
    job = _Job(observations)
    lateness = [_lateness(o, job) for o in observations]
    late = [o for o, part in zip(observations, lateness, strict=True) if part >= 1]
    hung: set[str] = set()
    for suspect in sorted(late, key=_patience):
        if any(_relieves(other, suspect) for other in observations if other.worker not in hung):
            hung.add(suspect.worker)
    waiters = job.waiters
    return [_verdict(o, part, waiters, hung) for o, part in zip(observations, lateness, strict=True)]


class _Job:
    """All observations, and who among them waits, or belongs together."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        self._observations = observations
        self.waiters = [o for o in observations if o.doing is not None and o.doing.kind == WAITS]
        self._replicas: defaultdict[int, list[Observation]] = defaultdict(list)
        for observed in observations:
            if observed.replica is not None:
                self._replicas[observed.replica].append(observed)

    def mates(self, observed: Observation) -> list[Observation]:
        """Whom it may wait for within its replica: not one that has no state yet, or has made the step already."""
        own, found = observed.doing, []
        for mate in self._replicas[observed.replica] if observed.replica is not None else ():
            ahead = own is not None and mate.doing is not None and mate.doing.step > own.step
            if mate.worker != observed.worker and mate.holds and not ahead:
                found.append(mate)
        return found

    def can_do_without(self, observed: Observation) -> bool:
        """Whether the state of its coordinate would not go with it."""
        return any(_relieves(other, observed) for other in self._observations)


def _verdict(observed: Observation, lateness: float, waiters: Sequence[Observation], hung: set[str]) -> Verdict:
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


def _lateness(observed: Observation, job: _Job) -> float:
    """How much of its limit the others have waited for it; 0 for one that is not judged."""
    own = observed.doing
    if own is None or own.kind not in (BUSY, SILENT) or not (waiting := _waiting(own, job.waiters)):
        return 0.0
    limit = max(own.limit, *(doing.limit for _, doing in waiting))
    waited = min(own.seconds, max(doing.seconds for _, doing in waiting))
    if own.kind == BUSY:
        for mate in job.mates(observed):
            doing = mate.doing
            if doing is None or doing.kind in (SILENT, LONG) or _is_at_fault_first(mate, observed, job):
                return 0.0
            if doing.kind == BUSY:  # it may still have the patience of a first step, which both wait for
                limit = max(limit, doing.limit)
            waited = min(waited, doing.seconds)
    return waited / limit if limit > 0 else 1.0


def _is_at_fault_first(mate: Observation, observed: Observation, job: _Job) -> bool:
    """Whether of two who are BUSY the mate is looked at first: for longer, and somebody could take its place."""
    own, other = observed.doing, mate.doing
    if own is None or other is None or other.kind != BUSY:
        return False
    return (-other.seconds, mate.worker) < (-own.seconds, observed.worker) and job.can_do_without(mate)


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

"""What the metrics know of one worker, and how its own words are read: nothing that it says may do harm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reknit.health.families import CAUSES, Sample
from reknit.health.ledger import DRAIN, REINIT, SPARE, START, WAIT, Ledger
from reknit.health.straggler import Slow

LONG, SILENT = "long", "silent"
LONGEST_NAME = 300

# A phase in a worker's words, which may be the script's own, and in the metrics', which are few.
PHASE_WORDS = {
    "its start": "start",
    "building its model": "build",
    "waiting for a plan": "wait",
    "connect": "connect",
    "compare": "compare",
    "heal": "heal",
    "ready": "ready",
    "forward and backward": "work",
    "reduce": "reduce",
    "vote": "vote",
    "the optimizer's step": "optimizer",
    "between attempts": "between",
    "its end": "finish",
    "writing the last checkpoint": "finish",
}
AT_WORDS = {START: "start", WAIT: "wait", SPARE: "wait", DRAIN: "wait", REINIT: "reinit", "over": "finish"}


@dataclass
class WorkerRecord:
    """What is known of one worker.  `at` and `commit_at` are monotonic, `down_at` says since when it has no process."""

    ledger: Ledger
    at: float
    pid: int | None = None
    up: bool = False
    placed: bool = False
    step: int | None = None
    commit_at: float | None = None
    generation: int | None = None  # in which this process last committed
    slowdown: float | None = None
    phase: str | None = None  # as its newest pulse says
    asked: bool = False  # to leave
    down_at: float | None = None

    def samples(self, worker: str, now: float, wall: float) -> Iterator[Sample]:
        """What is known of it at this moment; `wall` is the Unix time of `now`."""
        name, ledger = (worker,), self.ledger
        ledger.pass_time(now)
        yield Sample("worker_up", name, self.up)
        yield Sample("worker_placed", name, self.placed)
        yield Sample("productive_seconds", name, ledger.productive)
        for cause in CAUSES:
            yield Sample("lost_seconds", (worker, cause), ledger.lost[cause])
        if self.step is not None:
            yield Sample("worker_step", name, self.step)
        if self.commit_at is not None:
            yield Sample("worker_last_commit_timestamp_seconds", name, wall - (now - self.commit_at))
        if self.slowdown is not None:
            yield Sample("worker_slowdown_ratio", name, self.slowdown)
        if self.up:
            phase = self.phase or AT_WORDS.get(ledger.at, "training")
            yield Sample("worker_phase", (worker, phase), 1)
            yield Sample("worker_phase_seconds", name, max(0.0, now - self.at))


def phase_word(phase: str, kind: str) -> str:
    """A phase that a pulse tells of, in the vocabulary of the metrics."""
    return {LONG: "announced", SILENT: "silent"}.get(kind, PHASE_WORDS.get(phase, "other"))


def slowdown_of(committed: Mapping[str, Any]) -> float | None:
    """How many times its coordinate's median a worker takes, if its event of a committed step says so."""
    timing = committed.get("timing")
    return amount(timing.get("slowdown")) if isinstance(timing, Mapping) else None


def slowest_of(timing: Mapping[str, Any]) -> Slow | None:
    """Who is the slowest, and by how much, in the words of a worker; None if they do not fit."""
    told = timing.get("slowest")
    if not isinstance(told, list) or len(told) != 3 or not isinstance(told[0], str) or len(told[0]) > LONGEST_NAME:
        return None
    ratio, behind = amount(told[1]), amount(told[2])
    return None if ratio is None or behind is None else Slow(told[0], ratio, behind)


def amount(value: Any) -> float | None:
    """A finite number from 0 that a metric can take; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 2**62 and math.isfinite(value) else None

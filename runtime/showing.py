"""What an agent can tell of its workers at this moment, for those who look at the job.

A worker that gets on tells of each step that it commits, and nothing else; one that does not says once a second what
it is at.  So what is known is put together from its newest events, its newest pulse, and its silence.  Pure; time is
passed in (monotonic seconds).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from reknit.rendezvous.records import SILENT, Member
from reknit.rendezvous.shows import GETS_ON, Show, Shown
from reknit.runtime.fleet import Worker
from reknit.runtime.known import REINIT
from reknit.runtime.stalls import silence_limit

QUIET = 3.0  # seconds: one that gets on, or tells that it does not, is heard of more often

STARTING, ENDING, FINISHED = "starting", "ending", "finished"  # what is known of one that has no place, or needs none
BUILDING, SPARE = "building its model", "spare"
WAITS_FOR_A_PLAN = "waiting for a plan"  # as a worker's recovery calls it
STOPPED, QUIET_PHASE = "stopped", "says nothing"


def show_of(
    agent: str, workers: Iterable[Worker], stopped: Collection[str], hang: float, now: float, **totals: float | None
) -> Show:
    """What `agent` tells of its workers.  `stopped`: those whose process the kernel says is stopped."""
    shown = [_shown(worker, worker.worker_id in stopped, hang, now) for worker in workers if not worker.over]
    return Show(agent, tuple(one for one in shown if one is not None), **totals)


def _shown(worker: Worker, stopped: bool, hang: float, now: float) -> Shown | None:
    """One worker; None if no process of it is known."""
    member, known = worker.member, worker.known
    if member is None:
        return None
    kind, phase, seconds, limit = _at(worker, member, stopped, hang, now)
    return Shown(
        member.name,
        member.pid,
        phase,
        seconds,
        kind,
        limit,
        known.step if known.step is not None else (None if member.committed is None else member.committed.step),
        None if known.committed_at is None else now - known.committed_at,
        known.slowdown,
        member.draining or worker.drain is not None,
        len(worker.exits),
    )


def _at(worker: Worker, member: Member, stopped: bool, hang: float, now: float) -> tuple[str, str, float, float]:
    """What it is at: kind, phase, seconds, limit."""
    known, watch = worker.known, worker.watch
    placed = worker.view is not None and worker.view.replica is not None
    quiet = now - watch.heard
    if worker.gone or worker.peer is None:
        return GETS_ON, ENDING if worker.gone else STARTING, max(0.0, quiet), 0.0
    if stopped or (placed and quiet >= QUIET and not watch.excused and not worker.finished):
        limit = silence_limit(watch, hang, stopped)
        return SILENT, STOPPED if stopped else QUIET_PHASE, max(0.0, quiet), limit
    if known.stall is not None:
        stall = known.stall
        return stall.kind, stall.phase, stall.seconds + now - known.told_at, stall.limit
    return GETS_ON, _phase(worker, member, placed), max(0.0, now - known.since), 0.0


def _phase(worker: Worker, member: Member, placed: bool) -> str:
    """What one that gets on is at."""
    if worker.finished:
        return FINISHED
    if placed:
        return worker.known.phase or REINIT
    return BUILDING if member.coordinate is not None and not member.built else SPARE

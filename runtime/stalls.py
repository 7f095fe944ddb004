"""From the pulses of a worker to the stall in its record: which are written, and when one is taken back.

A worker says once a second what it is at, if it has been at it for more than a second.  The record is shared by the
whole job and lies in the store, so it tells only of what takes unusually long: from a sixth of the time after which
somebody counts as hung.  Pure; time is passed in (monotonic seconds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reknit.rendezvous.codec import read_stall
from reknit.rendezvous.records import BUSY, LONG, SILENT, Member, Stall
from reknit.runtime.config import SILENCE

WRITTEN_PART = 1 / 6  # of the limit
COMPILATION = 10  # before its first step in this process a worker may take so many times longer; so may a start
SLACK = 2.0  # seconds: two stalls of one phase are the same if their beginnings differ by less


@dataclass
class Watch:
    """What an agent knows of how one process gets on, beside its record.

    `heard`: when it last said anything.  `written`: when the stall in its record was put there.  `limit`: the newest
    that it said.  `stepped`: whether it has committed a step in this process.  `excused`: whether its newest pulse told
    of a phase that it has announced.  `named`: whether it was said that it is held up.
    """

    heard: float
    written: float = 0.0
    limit: float = 0.0
    stepped: bool = False
    excused: bool = False
    named: bool = False


def read_pulse(message: Mapping[str, Any], worker_id: str) -> Stall:
    """What a worker says that it is at; RecordError if it does not fit."""
    return read_stall(message, f"the pulse of {worker_id}")


def is_over(pulse: Stall) -> bool:
    """Whether a worker says that it is at this no longer."""
    return pulse.seconds <= 0


def after_pulse(member: Member, pulse: Stall, watch: Watch, now: float) -> Member:
    """The record after a pulse; the same object if it tells as much already.  Notes in `watch` what was said."""
    watch.excused = pulse.kind == LONG and not is_over(pulse)
    if not is_over(pulse):  # else its limit is over with it
        watch.limit = pulse.limit
    if pulse.seconds < pulse.limit * WRITTEN_PART:
        return moved_on(member)
    if member.stall is not None and _same(member.stall, pulse, now - watch.written):
        return member
    watch.written = now
    return replace(member, stall=pulse)


def _same(written: Stall, pulse: Stall, age: float) -> bool:
    going_on = replace(written, seconds=pulse.seconds) == pulse
    return going_on and abs(written.seconds + age - pulse.seconds) < SLACK


def after_event(member: Member, event: str, watch: Watch) -> Member:
    """The record after the worker told of an event: who has committed a step has moved on."""
    if event != "committed":
        return member
    if not watch.stepped:
        watch.stepped, watch.limit = True, 0.0  # the limit so far was that of a first step
    return moved_on(member)


def after_words(member: Member, kind: str) -> Member:
    """The record after a worker said anything: it is not silent, nor busy if it tells how it gets on."""
    stall = member.stall
    if stall is None or kind == "pulse":
        return member
    over = stall.kind == SILENT or kind in ("ready", "built", "finished") or (stall.kind == BUSY and kind == "left")
    return moved_on(member) if over else member


def moved_on(member: Member) -> Member:
    """The record without a stall."""
    return member if member.stall is None else replace(member, stall=None)


def after_silence(member: Member, generation: int, watch: Watch, hang: float, stopped: bool, now: float) -> Member:
    """The record of a worker that has a place: nothing was heard of it for long, so nobody knows what it is at.

    `generation`: in which it has its place.  `stopped`: the kernel says that the process is stopped, so it compiles
    nothing, whatever it was at.  Else what it has announced may well hold the interpreter.
    """
    seconds = now - watch.heard
    if seconds < silence_after(hang) or (member.stall is not None and member.stall.kind == SILENT):
        return member
    if watch.excused and not stopped:
        return member
    phase = "its process is stopped" if stopped else "it says nothing any more"
    limit = silence_limit(watch, hang, stopped)
    step = member.committed.step if member.committed is not None else 0
    watch.written = now
    return replace(member, stall=Stall(generation, step, phase, SILENT, seconds, limit))


def silence_limit(watch: Watch, hang: float, stopped: bool) -> float:
    """After how many seconds of silence, while others wait, a worker counts as hung."""
    usual = hang if stopped or watch.stepped else hang * COMPILATION
    return max(usual, watch.limit if watch.stepped else 0.0)


def held_up(member: Member, watch: Watch, hang: float, now: float) -> str | None:
    """What keeps a worker that has no place from getting one, as a sentence; None if it has not lasted for long.

    Nobody waits for it, so it is not judged: but one that has been BUSY, or SILENT, for longer than any start may take
    will perhaps never come.
    """
    stall, limit = member.stall, hang * COMPILATION
    if watch.excused:
        return None
    if stall is not None and stall.kind == BUSY:
        seconds, limit = stall.seconds + now - watch.written, max(limit, stall.limit)
        at = stall.phase if stall.phase.startswith("building") else f"busy ({stall.phase})"
        said = f"{member.worker_id} has been {at}"
    else:
        seconds, said = now - watch.heard, f"{member.worker_id} has said nothing"
    return f"{said} for {seconds:.0f} s" if seconds >= limit else None


def silence_after(hang: float) -> float:
    """After how many seconds without a word a worker is silent."""
    return max(hang * WRITTEN_PART, SILENCE)


def is_stopped(stat: str) -> bool:
    """Whether `/proc/<pid>/stat` speaks of a process that was stopped (by SIGSTOP, or a debugger)."""
    return stat.rpartition(")")[2].split()[:1] in (["T"], ["t"])

"""Whom to kill and when.  The choice is a pure function of a seed and of the situation; only `kill` does anything.

Moments are spread over the run: each order names a step from which on it may be carried out.  It is carried out once
the job is back at full strength, and then a random part of a step later, so that kills fall into every phase of a step.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass

from reknit.runtime.demo.situation import DEAD, FINISHED, Situation
from reknit.runtime.demo.story import Event

_FIRST, _LAST = 0.05, 0.85  # the part of the run in which kills are due
STEPS_BEFORE, STEPS_PER_KILL, STEPS_AFTER = 15, 40, 45


@dataclass(frozen=True)
class Order:
    """One kill: from `step` committed steps on, and `fraction` of a step after the job is ready for it.

    `pick` times the number of workers is the victim's number.  Both lie in [0, 1).
    """

    step: int
    fraction: float
    pick: float


@dataclass(frozen=True)
class Victim:
    """The process to kill."""

    worker: str
    pid: int


def enough_steps(kills: int, steps: int) -> int:
    """At least `steps`, and enough that the job can come back to full strength after each of `kills` kills."""
    return max(steps, STEPS_BEFORE + STEPS_PER_KILL * kills + STEPS_AFTER) if kills else steps


def make_orders(kills: int, steps: int, seed: int) -> tuple[Order, ...]:
    """One order in each of `kills` equal windows of the run: the same for the same arguments."""
    chance = random.Random(f"reknit-demo/{seed}")
    width = (_LAST - _FIRST) * steps / max(1, kills)
    return tuple(
        Order(int(_FIRST * steps + width * (index + chance.random())), chance.random(), chance.random())
        for index in range(kills)
    )


def decide(order: Order, situation: Situation, last_kill: int, steps: int, now: float) -> Victim | None:
    """The victim if the moment has come, else None.

    Args:
        order: what is to be done next.
        situation: as of all events so far.
        last_kill: the generation in which the previous victim died (0: none yet); a newer one must be at full strength.
        steps: how many the run has; in the last `STEPS_AFTER` / 2 of them nobody is killed, since the job could not
            come back to full strength before its end.
        now: CLOCK_MONOTONIC seconds.
    """
    if situation.full is None or not situation.is_full or situation.generation <= last_kill:
        return None
    if situation.step < order.step or situation.step > steps - STEPS_AFTER // 2:
        return None
    reached = min(t for step, t in situation.reached.items() if step >= order.step)
    if now < max(reached, situation.full[1]) + order.fraction * situation.step_seconds:
        return None
    seated = set(situation.seats.values())
    living = [
        Victim(name, worker.pid)
        for name, worker in sorted(situation.workers.items())
        if name in seated and worker.status not in (DEAD, FINISHED)
    ]
    return living[int(order.pick * len(living))] if len(living) == len(seated) > 0 else None


def kill(victim: Victim, situation: Situation) -> Event | None:
    """Send SIGKILL; returns the `killed` event, whose `t` was taken right before; None if there is no such process."""
    event = {
        "t": time.monotonic(),
        "event": "killed",
        "worker": victim.worker,
        "generation": situation.generation,
        "pid": victim.pid,
        "step": situation.step,
        "kind": "SIGKILL",
    }
    try:
        os.kill(victim.pid, signal.SIGKILL)
    except ProcessLookupError:
        return None
    return event


def inspect(situation: Situation) -> list[Event]:
    """An `inspected` event for each living worker: its open descriptors and threads, as the kernel counts them."""
    events: list[Event] = []
    for name, worker in situation.workers.items():
        if worker.status in (DEAD, FINISHED):
            continue
        try:
            fds, threads = (len(os.listdir(f"/proc/{worker.pid}/{kind}")) for kind in ("fd", "task"))
        except OSError:  # it is just ending
            continue
        events.append(
            {
                "t": time.monotonic(),
                "event": "inspected",
                "worker": name,
                "generation": situation.generation,
                "pid": worker.pid,
                "fds": fds,
                "threads": threads,
            }
        )
    return events

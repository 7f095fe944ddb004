"""Whom an agent asks whether it lives, when its workers wait for a plan that does not come.

A worker that was lost is found by its agent, and a plan follows within milliseconds.  If none comes, then either the
agents of those that were lost sight of are gone with them, or the leader is.  Pure; time is passed in (monotonic).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reknit.rendezvous.parts import View
from reknit.rendezvous.records import Member, Name

AGAIN = 1.0  # seconds until the same agent is accused anew
RARELY = 10.0  # ... at most, as who still waits may wait for minutes for one that is busy, and leases end meanwhile
PART = 1 / 4  # ... and in between, of the time that it has waited
AT_ONCE = 8  # agents that one agent accuses within that time: where all leave, each sees the connections of many end


@dataclass(frozen=True)
class Waiting:
    """A worker of this agent that left `generation` at `since` and has heard of nothing newer.

    `gone`: peers whose connection it found closed; `absent`: that it could not connect to.
    """

    worker_id: str
    generation: int
    since: float
    gone: tuple[Name, ...] = ()
    absent: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Suspect:
    """An agent to accuse: what `Session.accuse` takes."""

    agent: str
    generation: int
    reason: str


def waiting(member: Member, view: View | None, newest: int, left_at: float) -> Waiting | None:
    """What this worker waits for, if it does: it has left its place, and no generation above it is known."""
    if view is None or view.replica is None or member.left != view.generation or newest > view.generation:
        return None
    return Waiting(member.worker_id, member.left, left_at, member.gone, member.absent)


def agents_of(views: Iterable[View | None]) -> dict[Name, str]:
    """Which agent looks after each process, as far as these views tell."""
    found = {}
    for view in views:
        if view is not None and view.replica is not None:
            for place in (*view.replica.places, *(peer.place for peer in view.peers)):
                found[place.name] = place.agent
    return found


def suspects(
    waiting: Sequence[Waiting],
    agents: Mapping[Name, str],
    own: str,
    leader: str | None,
    accused_at: Mapping[str, float],
    accuse_after: float,
    now: float,
) -> tuple[list[Suspect], float | None]:
    """Whom to accuse now, each agent once, and when to look again (None: nobody waits).

    `own`: this agent's name; `leader`: who leads, if anybody; `accused_at`: when this agent last accused whom.  Of many
    every agent picks others, so that together they ask about all, and each of them asks about few.
    """
    found: dict[str, Suspect] = {}
    moments: list[float] = []
    for one in sorted(waiting, key=lambda each: (each.since, each.worker_id)):
        due, pause = one.since + accuse_after, min(RARELY, max(AGAIN, PART * (now - one.since)))
        if now < due:
            moments.append(due)
            continue
        for agent, reason in _doubted(one, agents, leader):
            if not agent or agent == own or agent in found:
                continue
            again = accused_at.get(agent, float("-inf")) + pause
            if now < again:
                moments.append(again)
            else:
                found[agent] = Suspect(agent, one.generation, reason)
        moments.append(now + pause)
    room = AT_ONCE - sum(now - moment < AGAIN for moment in accused_at.values())
    picked = sorted(found.keys() - {leader}, key=lambda agent: zlib.crc32(f"{own}/{agent}".encode()))[: max(0, room)]
    kept = [suspect for agent, suspect in found.items() if agent == leader or agent in picked]
    return kept, min(moments, default=None)


def _doubted(one: Waiting, agents: Mapping[Name, str], leader: str | None) -> Iterable[tuple[str, str]]:
    for name in one.gone:
        yield agents.get(name, ""), f"{one.worker_id} saw its connection to {name} end"
    for name in one.absent:
        yield agents.get(name, ""), f"{one.worker_id} could not connect to {name}"
    if leader is not None:
        yield leader, f"{one.worker_id} left generation {one.generation}, and the leader publishes no plan"

"""Who can be put out without losing state, and what it costs a worker to have been put out.

A member that hangs, or that its peers cannot reach, makes all of them wait; without it the job goes on.  But one that
alone holds a coordinate's state must stay, whatever it does: the job would be lost with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from reknit.rendezvous.records import Name, Plan


@dataclass(frozen=True)
class Seat:
    """Where a process sits, or sat, and what would go with it.

    `standing`: 2 if it is current, so that it holds all that was committed (recovery/PROTOCOL.md, rule 8); 1 if it
    holds what some training made of its state; 0 if nothing.  `since`: first generation of its unbroken run of places.
    `slot`: the replica that it sits in, None for nowhere.  `agent`: who looks after it, "" if that is not known.
    """

    coordinate: int
    placed: bool
    standing: int
    since: int = 0
    slot: int | None = None
    agent: str = ""


def part(asked: Mapping[Name, str], seats: Mapping[Name, Seat]) -> tuple[dict[Name, str], list[Name]]:
    """Part those who are asked to be put out: who can be, in this order, with the sentence; and who has to stay.

    Who has never had a place stands in nobody's way, and is in neither.
    """
    out: dict[Name, str] = {}
    spared = []
    for name, sentence in sorted(asked.items()):
        if name not in seats:
            continue
        if can_go(name, seats, out):
            out[name] = sentence
        else:
            spared.append(name)
    return out, spared


def can_go(name: Name, seats: Mapping[Name, Seat], gone: Collection[Name]) -> bool:
    """Whether somebody else, who is not among the `gone`, holds the coordinate's state at least as well."""
    seat = seats[name]
    return any(
        other.coordinate == seat.coordinate and other.standing >= seat.standing and (other.placed or not seat.placed)
        for holder, other in seats.items()
        if holder != name and holder not in gone
    )


def still_evicted(previous: Plan, evicted: Collection[Name], here: Collection[Name]) -> tuple[Name, ...]:
    """Whom the next plan names as put out: now, or before and still observed."""
    return tuple(sorted({*evicted, *(name for name in previous.evicted if name in here)}))


def still_asked(previous: Plan, asked: Collection[Name], idle: Collection[Name]) -> tuple[Name, ...]:
    """Whom the next plan asks to start afresh: now, or before and still there without a place.

    An agent may see only the newest plan, so what a plan asks for stands in all that follow, until it is done.
    """
    return tuple(sorted({*asked, *(name for name in previous.restart if name in idle)}))


def counted(previous: Plan, evicted: Iterable[Name]) -> tuple[tuple[str, int], ...]:
    """The offences that the next plan names: one more for each who is put out now."""
    return tuple(sorted((Counter(dict(previous.offences)) + Counter(name.worker_id for name in evicted)).items()))


def forgiven(plan: Plan, worker_ids: Collection[str]) -> Plan:
    """The same plan without the offences of these workers."""
    return replace(plan, offences=tuple(entry for entry in plan.offences if entry[0] not in worker_ids))

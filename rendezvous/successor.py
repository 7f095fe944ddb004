"""The plan that follows: places chosen by the rules become the next generation's complete record.

Rule 2 of runtime/recovery/PROTOCOL.md: what a plan says of each worker and of each replica.
"""

from __future__ import annotations

from collections.abc import Sequence

from reknit.rendezvous.eviction import counted, still_asked, still_evicted
from reknit.rendezvous.places import Places
from reknit.rendezvous.records import RUNNING, WAITING, Former, Name, Place, Plan, Replica, Version
from reknit.rendezvous.view import Outcome, View


def publish(
    view: View,
    places: Places,
    reason: str,
    kind: str,
    broken: int = 0,
    target: Version | None = None,
    restore: bool = False,
) -> Outcome:
    """Publish a plan with these places; too few for the least number of replicas are none."""
    least, size = view.spec.min_replicas, view.spec.axes.size
    if len(places) < least:
        places = ()
        reason += f"; waiting: fewer members than {least} x {size} are here"
    return Outcome(plan_of(view, places, reason, kind, broken, target, restore and bool(places)), reason)


def plan_of(
    view: View,
    places: Places,
    reason: str,
    kind: str,
    broken: int = 0,
    target: Version | None = None,
    restore: bool = False,
) -> Plan:
    """The next generation with exactly these places."""
    head = view.previous
    generation = head.generation + 1
    placed = {name for replica in places for name in replica}
    return Plan(
        generation,
        reason,
        state=RUNNING if places else WAITING,
        replicas=_replicas(view, places, generation),
        former=_former(view, placed),
        spares=tuple(m.name for m in view.members if m.name not in placed),
        restart=still_asked(head, view.evicted, {o.member.name for o in view.everybody if not o.member.dead} - placed),
        broken=max(broken, head.broken),
        target=Version(generation, 0) if restore and target is None else target,
        restore=restore,
        origin=generation if restore else head.origin,
        placed=generation if places else head.placed,
        evicted=still_evicted(head, view.evicted, {o.member.name for o in view.everybody}),
        offences=counted(head, view.evicted),
        kind=kind,
        wanted=view.spec.wanted,
    )


def _former(view: View, placed: set[Name]) -> tuple[Former, ...]:
    return tuple(
        Former(name, past.coordinate, past.placed, past.since)
        for name, past in sorted(view.past.items())
        if name in view.observed and name not in placed
    )


def _replicas(view: View, places: Places, generation: int) -> tuple[Replica, ...]:
    standing = {r.names: r for r in view.previous.replicas if not _torn(view, r)}
    slots = assign_slots(view.previous.replicas, places)
    replicas = []
    for slot, names in zip(slots, places, strict=True):
        formed = standing[names].formed if names in standing else generation
        replicas.append(Replica(slot, formed, tuple(_place(view, name, generation) for name in names)))
    return tuple(sorted(replicas, key=lambda replica: replica.slot))


def _torn(view: View, replica: Replica) -> bool:
    members = [view.observed[name].member for name in replica.names if name in view.observed]
    return any(member.torn >= replica.formed for member in members)


def _place(view: View, name: Name, generation: int) -> Place:
    member, past = view.observed[name].member, view.past.get(name)
    run = past is not None and past.placed == view.previous.placed
    since = past.since if past is not None and run else generation
    return Place(name, member.host, member.address, since, member.agent)


def assign_slots(before: Sequence[Replica], places: Places) -> list[int]:
    """A slot for each replica: its old one if it stands, else the free one with which it shares most members."""
    old = {replica.names: replica.slot for replica in before}
    slots = [old.get(names, -1) for names in places]
    broken = [replica for replica in before if replica.slot not in slots]
    free = sorted({*range(len(places)), *(replica.slot for replica in broken)}.difference(slots))
    for i, names in enumerate(places):
        if slots[i] < 0:
            shared = {replica.slot: len(set(replica.names) & set(names)) for replica in broken}
            slots[i] = max(free, key=lambda slot: (shared.get(slot, 0), -slot)) if shared else free[0]
            free.remove(slots[i])
    return slots

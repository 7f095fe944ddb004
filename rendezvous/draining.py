"""Leaving on request: the order that an operator writes, and when a drained worker may end.  Pure.

An order lies at `drains/<worker_id>` and names an incarnation, so it never meets the worker's next process.  The worker
then leaves at a step boundary, as the planner gives it no place any more.  But it may hold the only copy of what was
committed until a generation without it runs (rule 15 of runtime/recovery/PROTOCOL.md): it stays until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reknit.rendezvous.codec import Reader, dumps, loads
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.keys import check_name
from reknit.rendezvous.plan import history, runs
from reknit.rendezvous.records import FINISHED, FORMAT, LOST, Member, Name, Plan

REPLICA = "replica/"  # how the target of an order begins if it is a slot


@dataclass(frozen=True)
class DrainOrder:
    """`name` shall leave within `seconds`; `by` says for people who asks.

    Its agent deletes the order when the worker may end, and before its record; if the record goes and the order stays,
    the worker was lost.
    """

    name: Name
    seconds: float
    by: str


def encode_order(order: DrainOrder) -> bytes:
    """An order's value; the worker is named by its key."""
    return dumps({"format": FORMAT, "incarnation": order.name.incarnation, "seconds": order.seconds, "by": order.by})


def decode_order(raw: bytes, key: str) -> DrainOrder:
    """The order at `key`; RecordError if it does not fit."""
    reader = Reader(loads(raw, key), key)
    worker_id = check_name("worker id", key.rpartition("/")[2])
    return DrainOrder(Name(worker_id, reader.text("incarnation")), reader.seconds("seconds"), reader.text("by", ""))


def may_end(plan: Plan | None, members: Sequence[Member], name: Name, patient: bool = True) -> bool:
    """Whether a draining process may end without being missed, and without costing a generation.

    `plan` is the newest one (None: there is none), `members` the records as of a moment before it was read.  Not
    `patient`: it is enough that nobody needs it, though its end may cost the others a generation (none of their steps).
    """
    past = {} if plan is None else history(plan)
    if plan is None or name not in past:
        return True  # it never had a place, or was taken for lost
    if plan.state in (FINISHED, LOST) or name in plan.names or not runs(plan, members):
        return False
    if plan.closing:
        return False  # until the last checkpoint is complete all that live are worth keeping
    former = [m for m in members if m.name in past and m.name not in plan.names and not m.dead]
    return all(m.left >= past[m.name].placed for m in former if patient or m.name == name)


def last_holders(plan: Plan | None, members: Iterable[Member], names: Iterable[Name]) -> list[Name]:
    """Who of `names` would take the only copy of a coordinate's state along, as nobody else who stays has it."""
    if plan is None:
        return []
    asked = set(names)
    leaving = asked | {m.name for m in members if m.draining or m.dead}
    columns = zip(*(replica.names for replica in plan.replicas), strict=True)
    return sorted(name for column in columns if leaving.issuperset(column) for name in column if name in asked)


def whom(target: str, plan: Plan | None, members: Iterable[Member]) -> list[Name]:
    """The living processes that `target` means: a worker, all of a host (or an agent), or `replica/SLOT`.

    Raises RecordError for a slot that is no number.
    """
    living = [m for m in members if not m.dead]
    if target.startswith(REPLICA):
        slot = target.removeprefix(REPLICA)
        if not (slot.isascii() and slot.isdigit()):
            raise RecordError(f"{target!r:.80} names no replica: it is {REPLICA} and the slot's number, as replica/0")
        replicas = [] if plan is None else [replica for replica in plan.replicas if replica.slot == int(slot)]
        seated = {name for replica in replicas for name in replica.names}
        return sorted(m.name for m in living if m.name in seated)
    exact = [m.name for m in living if m.worker_id == target]
    return exact or sorted(m.name for m in living if target in (m.host, m.agent))

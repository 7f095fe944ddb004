"""A job's history: one small record for each generation, which says why it came about, for people and their tools.

A plan's head says so too, but only of the newest one, and its parts are many.  A record is written in the same
transaction as its plan's head, so that each generation has exactly one; the leader's agent adds the gap when it has
seen it.  As many are kept as plans are.  When a job ends they are what is left of it, for `KEPT_SECONDS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from reknit.rendezvous.codec import Reader, clipped, dumps, loads
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.kinds import DECISION, KINDS
from reknit.rendezvous.records import FINISHED, FORMAT, LOST, RUNNING, WAITING, Plan
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Entry

KEPT_SECONDS = 86_400.0  # what is left of a job that has ended stays for so long
LATEST = 1e11  # no moment on a wall clock is later, in seconds


@dataclass(frozen=True)
class HistoryRecord:
    """How one generation came about.

    `at`: when it was published, in seconds on the wall clock of its leader's host: for people only.  `kind`: a word of
    `kinds.KINDS`.  `members`: how many have a place, `spares`: how many wait without one.  `gap`: seconds from the last
    step committed before it to the first one committed in it, or later; None where that is not known.
    """

    generation: int
    at: float
    reason: str
    state: str
    kind: str
    replicas: int
    members: int
    spares: int
    gap: float | None = None


def record_of(plan: Plan, at: float) -> HistoryRecord:
    """The record of a plan that is published at `at`."""
    counts = len(plan.replicas), len(plan.names), len(plan.spares)
    return HistoryRecord(plan.generation, at, plan.reason, plan.state, plan.kind, *counts)


def as_json(record: HistoryRecord) -> dict[str, Any]:
    """A record as other programs get it; the keys are stable."""
    return {
        "generation": record.generation,
        "at": record.at,
        "kind": record.kind,
        "reason": record.reason,
        "state": record.state,
        "replicas": record.replicas,
        "members": record.members,
        "spares": record.spares,
        "gap": record.gap,
    }


def encode_record(record: HistoryRecord) -> bytes:
    """A record's value."""
    return dumps({"format": FORMAT, **as_json(replace(record, reason=clipped(record.reason)))})


def decode_record(raw: bytes, key: str) -> HistoryRecord:
    """The record at `key`; RecordError if it does not fit."""
    value = loads(raw, key)
    reader = Reader(value, key)
    state, kind = reader.text("state"), reader.text("kind")
    if state not in (RUNNING, WAITING, FINISHED, LOST):
        raise RecordError(f"{key}: unknown state {state!r:.80}")
    generation = reader.generation("generation")
    if key.rpartition("/")[2] != f"{generation:020d}":
        raise RecordError(f"{key} speaks of generation {generation}")
    return HistoryRecord(
        generation,
        _moment(reader),
        reader.text("reason"),
        state,
        kind if kind in KINDS else DECISION,  # a later version's word
        reader.number("replicas"),
        reader.number("members"),
        reader.number("spares", 0),
        None if value.get("gap") is None else reader.seconds("gap"),
    )


def read_all(entries: Iterable[Entry], rejected: Rejected) -> Iterator[HistoryRecord]:
    """The records that lie at these entries, in their order; what does not fit is left out."""
    found = (rejected.read(entry, decode_record) for entry in entries)
    return (record for record in found if record is not None)


def _moment(reader: Reader) -> float:
    found = reader.value.get("at")
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found <= LATEST:
        raise RecordError(f"{reader.what}: 'at' must be seconds on a wall clock, not {found!r:.80}")
    return float(found)

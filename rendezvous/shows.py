"""What agents tell of their workers while somebody looks at the job, and the sign that somebody does.  Pure.

A record tells of what the job has to know; where a worker is at this moment only people want to know.  So it is told
only while somebody looks: whoever does puts `look`, again and again, and each agent then puts its `shows/<agent>`.
While nobody looks nothing is written.  Ages count from when a value was written: hosts' clocks are not compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reknit.rendezvous.codec import Reader, as_object, clipped, dumps, loads
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.keys import check_name
from reknit.rendezvous.records import BUSY, FORMAT, LONG, SILENT, WAITS, Name

LEASE = 10.0  # seconds that a look stands, if whoever looks is gone
AGAIN = 3.0  # seconds between two looks of one who goes on looking
TELLS = 10.0  # seconds for which agents tell after a look
EVERY = 1.0  # seconds between two tellings of one agent
MOST = 1024  # workers of one agent
LONGEST_AGE = 1e6  # seconds; what the Reader takes

GETS_ON = ""  # it is at nothing for long


@dataclass(frozen=True)
class Shown:
    """One worker, as its agent knows it.

    `phase`: what it is at, for people, for `phase_seconds`; `kind`: how that counts (GETS_ON, or as in a Stall), and
    `limit` as there.  `step`: the newest that it committed, `committed_age` seconds before (None: none in this
    process).  `slowdown`: its compute time against its group's median.  `restarts`: how often it was started again.
    """

    name: Name
    pid: int
    phase: str
    phase_seconds: float
    kind: str = GETS_ON
    limit: float = 0.0
    step: int | None = None
    committed_age: float | None = None
    slowdown: float | None = None
    draining: bool = False
    restarts: int = 0


@dataclass(frozen=True)
class Show:
    """What one agent tells.  `productive`, `lost`: seconds of its workers so far (None: not known)."""

    agent: str
    workers: tuple[Shown, ...] = ()
    productive: float | None = None
    lost: float | None = None


def encode_look(by: str) -> bytes:
    """A look's value; only that it changes counts, `by` is for people."""
    return dumps({"format": FORMAT, "by": clipped(by)})


def encode_show(show: Show) -> bytes:
    """What an agent tells; it is named by the key.  Of more than MOST workers the rest is left out."""
    workers = [_encode_shown(shown) for shown in show.workers[:MOST]]
    return dumps({"format": FORMAT, "workers": workers, "productive": show.productive, "lost": show.lost})


def decode_show(raw: bytes, key: str) -> Show:
    """What the agent at `key` tells; RecordError if it does not fit."""
    reader = Reader(loads(raw, key), key)
    agent = check_name("agent", key.rpartition("/")[2])
    workers = reader.items("workers", lambda item: _read_shown(item, f"{key}.workers"))
    if len(workers) > MOST:
        raise RecordError(f"{key} tells of {len(workers)} workers, more than {MOST}")
    return Show(agent, workers, _total(reader, "productive"), _total(reader, "lost"))


def _encode_shown(shown: Shown) -> dict[str, Any]:
    age = shown.committed_age
    return {
        "worker": shown.name.worker_id,
        "incarnation": shown.name.incarnation,
        "pid": shown.pid,
        "phase": clipped(shown.phase),
        "phase_seconds": _age(shown.phase_seconds),
        "kind": shown.kind,
        "limit": _age(shown.limit),
        "step": shown.step,
        "committed_age": None if age is None else _age(age),
        "slowdown": shown.slowdown,
        "draining": shown.draining,
        "restarts": shown.restarts,
    }


def _age(seconds: float) -> float:
    return round(min(max(0.0, seconds), LONGEST_AGE), 3)


def _read_shown(value: Any, what: str) -> Shown:
    reader = as_object(value, what)
    kind = reader.text("kind", GETS_ON)
    if kind not in (GETS_ON, WAITS, BUSY, LONG, SILENT):
        raise RecordError(f"{what}: unknown kind {kind!r:.80}")
    return Shown(
        Name(check_name(f"worker in {what}", reader.text("worker")), reader.text("incarnation")),
        reader.number("pid"),
        reader.text("phase"),
        reader.seconds("phase_seconds"),
        kind,
        reader.seconds("limit"),
        reader.optional_number("step"),
        _optional(reader, "committed_age"),
        _optional(reader, "slowdown"),
        reader.flag("draining"),
        reader.number("restarts", 0),
    )


def _optional(reader: Reader, key: str) -> float | None:
    return None if reader.value.get(key) is None else reader.seconds(key)


def _total(reader: Reader, key: str) -> float | None:
    """Seconds of many workers for many days."""
    found = reader.value.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found < 2**62:
        raise RecordError(f"{reader.what}: {key!r} must be a number of seconds, not {found!r:.80}")
    return float(found)

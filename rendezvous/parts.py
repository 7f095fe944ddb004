"""A plan as it is published: a small head that everybody watches, and immutable parts that few fetch.

Under a job's prefix (rule 4 of runtime/recovery/PROTOCOL.md):

    plan                                          the head
    plans/<generation>/head                       the same head, in case the other is lost
    plans/<generation>/<writer>/replica/<slot>    one replica: who sits where in it
    plans/<generation>/<writer>/data/<index>      one data group: who holds this coordinate, by data rank
    plans/<generation>/<writer>/leader            what only the next leader needs: former members, spares, evictions

Beside them lies `history/<generation>`, a record for people (`history.py`).

`writer` is the election revision of the leader that wrote them, and the head names it: a deposed leader's parts are
never read together with another's head.  A worker finds its slot in its data group's part.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from reknit.rendezvous.codec import (
    REPORTABLE,
    Reader,
    as_object,
    clipped,
    decode_name,
    decode_place,
    decode_replica,
    dumps,
    encode_name,
    encode_place,
    encode_replica,
    loads,
)
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.kinds import DECISION, DRAIN, KINDS, guessed
from reknit.rendezvous.records import (
    FINISHED,
    FORMAT,
    LOST,
    RUNNING,
    WAITING,
    Former,
    Name,
    Place,
    Plan,
    Replica,
    Version,
)

HEAD = "plan"


@dataclass(frozen=True)
class Head:
    """What everybody watches: enough to know how urgent the change is and where the parts are."""

    generation: int
    reason: str
    state: str
    broken: int
    target: Version | None
    restore: bool
    origin: int
    placed: int
    replicas: int
    writer: int
    digest: str
    restart: tuple[Name, ...] = ()
    spares: int = 0  # members without a place
    kind: str = DECISION
    closing: bool = False

    @property
    def urgent(self) -> bool:
        """Whether the generation before this one has lost something."""
        return self.broken >= self.generation - 1 > 0

    @property
    def stopped(self) -> bool:
        """Whether the whole job has drained, and waits to begin from its checkpoint (`closing`)."""
        return self.kind == DRAIN and self.state == WAITING and self.placed == 0


@dataclass(frozen=True)
class Peer:
    """One member of a data group and the slot of its replica."""

    slot: int
    place: Place


@dataclass(frozen=True)
class View:
    """A plan as one worker sees it: the head, and its replica and data group, or None where it has no place."""

    head: Head
    replica: Replica | None = None
    peers: tuple[Peer, ...] = ()

    @property
    def generation(self) -> int:
        """The plan's number."""
        return self.head.generation


def parts_prefix(generation: int, writer: int) -> str:
    """Where one leader's parts of one generation lie."""
    return f"plans/{generation}/{writer}/"


def head_of(plan: Plan, digest: str) -> Head:
    """The head of a plan."""
    return Head(
        plan.generation,
        plan.reason,
        plan.state,
        plan.broken,
        plan.target,
        plan.restore,
        plan.origin,
        plan.placed,
        len(plan.replicas),
        plan.writer,
        digest,
        plan.restart,
        len(plan.spares),
        plan.kind,
        plan.closing,
    )


def encode(plan: Plan) -> tuple[bytes, dict[str, bytes]]:
    """A plan -> its head, and its parts by key (relative to the job's prefix)."""
    prefix = parts_prefix(plan.generation, plan.writer)
    parts = {f"{prefix}replica/{r.slot}": dumps(encode_replica(r)) for r in plan.replicas}
    size = len(plan.replicas[0].places) if plan.replicas else 0
    for index in range(size):
        peers = [{"slot": r.slot, "place": encode_place(r.places[index])} for r in plan.replicas]
        parts[f"{prefix}data/{index}"] = dumps({"peers": peers})
    parts[f"{prefix}leader"] = dumps(_encode_rest(plan))
    digest = hashlib.sha256(b"\n".join(parts[key] for key in sorted(parts))).hexdigest()[:16]
    return encode_head(head_of(plan, digest)), parts


def _encode_rest(plan: Plan) -> dict[str, Any]:
    return {
        "slots": [r.slot for r in plan.replicas],
        "former": [[encode_name(f.name), f.coordinate, f.placed, f.since] for f in plan.former],
        "spares": [encode_name(name) for name in plan.spares],
        "evicted": [encode_name(name) for name in plan.evicted],
        "offences": [list(offence) for offence in plan.offences],
        "wanted": plan.wanted,
    }


def encode_head(head: Head) -> bytes:
    """The watched value."""
    return dumps(
        {
            "format": FORMAT,
            "reason": clipped(head.reason),  # whatever it tells of, everybody must be able to read the head
            **{key: getattr(head, key) for key in ("generation", "state", "kind", "broken", "target", "restore")},
            **{key: getattr(head, key) for key in ("origin", "placed", "replicas", "writer", "digest", "spares")},
            "closing": head.closing,
            "restart": [encode_name(name) for name in head.restart],
        }
    )


def decode_head(raw: bytes, what: str = HEAD) -> Head:
    """The watched value; RecordError if it does not fit."""
    return read_head(loads(raw, what), what)


def read_head(value: dict[str, Any], what: str = HEAD) -> Head:
    """The same from a JSON object, as it also comes over the agent's socket."""
    reader = Reader(value, what)
    state = reader.text("state")
    if state not in (RUNNING, WAITING, FINISHED, LOST):
        raise RecordError(f"{what}: unknown state {state!r:.80}")
    head = Head(
        reader.generation("generation", limit=2 * REPORTABLE),
        reader.text("reason"),
        state,
        reader.number("broken"),
        reader.version("target"),
        reader.flag("restore"),
        reader.number("origin"),
        reader.number("placed"),
        reader.number("replicas"),
        reader.number("writer"),
        reader.text("digest"),
        reader.items("restart", lambda item: decode_name(item, what)),
        reader.number("spares", 0),
        reader.text("kind", ""),
        reader.flag("closing"),
    )
    if head.kind in KINDS:
        return head
    return replace(head, kind=guessed(state, head.restore, head.target is not None, head.urgent))


def decode_peers(raw: bytes, what: str) -> tuple[Peer, ...]:
    """A data group's part; RecordError if it does not fit."""
    return Reader(loads(raw, what), what).items("peers", lambda item: read_peer(item, what))


def read_peer(value: Any, what: str) -> Peer:
    """One member of a data group."""
    reader = as_object(value, what)
    return Peer(reader.number("slot"), decode_place(reader.value.get("place"), what))


def decode_whole(head: Head, parts: dict[str, bytes]) -> Plan:
    """The complete plan, as a newly elected leader needs it; RecordError if a part is missing or does not fit."""
    prefix = parts_prefix(head.generation, head.writer)
    key = f"{prefix}leader"
    if key not in parts:
        raise RecordError(f"the plan's part {key} is missing")
    rest = Reader(loads(parts[key], key), key)
    replicas = []
    for slot in rest.items("slots", lambda item: _slot(item, key)):
        part = f"{prefix}replica/{slot}"
        if part not in parts:
            raise RecordError(f"the plan's part {part} is missing")
        replicas.append(decode_replica(loads(parts[part], part), part))
    return Plan(
        head.generation,
        head.reason,
        head.state,
        tuple(replicas),
        rest.items("former", lambda item: _former(item, key)),
        rest.items("spares", lambda item: decode_name(item, key)),
        head.restart,
        head.broken,
        head.target,
        head.restore,
        head.origin,
        head.placed,
        head.writer,
        rest.items("evicted", lambda item: decode_name(item, key)),
        rest.items("offences", lambda item: _offence(item, key)),
        head.kind,
        rest.number("wanted", 0),
        head.closing,
    )


def _offence(value: Any, what: str) -> tuple[str, int]:
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], str) or type(value[1]) is not int:
        raise RecordError(f"{what}: an offence must be [worker_id, count], not {value!r:.80}")
    return value[0], value[1]


def _slot(value: Any, what: str) -> int:
    if type(value) is not int or value < 0:
        raise RecordError(f"{what}: a slot must be an integer from 0, not {value!r:.80}")
    return value


def _former(value: Any, what: str) -> Former:
    if not isinstance(value, list) or len(value) != 4 or not all(type(x) is int for x in value[1:]):
        raise RecordError(f"{what}: a former member must be [name, coordinate, placed, since], not {value!r:.80}")
    return Former(decode_name(value[0], what), *value[1:])


def encode_view(view: View) -> dict[str, Any]:
    """A view as the agent sends it to its worker."""
    return {
        "head": loads(encode_head(view.head), HEAD),
        "replica": None if view.replica is None else encode_replica(view.replica),
        "peers": [{"slot": peer.slot, "place": encode_place(peer.place)} for peer in view.peers],
    }


def decode_view(value: dict[str, Any]) -> View:
    """A view as the worker gets it; RecordError if it does not fit."""
    reader = Reader(value, "view")
    head = as_object(value.get("head"), "view.head").value
    replica = None if value.get("replica") is None else decode_replica(value["replica"], "view.replica")
    return View(read_head(dict(head)), replica, reader.items("peers", lambda item: read_peer(item, "view.peers")))

"""Records as JSON, validated on read.

Every value carries `format`.  Fields that this version does not know are kept on a member's record, so that an older
agent that rewrites its record loses nothing; a value that does not fit raises `RecordError`, which callers count and
skip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from reknit.rendezvous.errors import LayoutError, RecordError
from reknit.rendezvous.records import (
    BUSY,
    FORMAT,
    LONG,
    SILENT,
    WAITS,
    Axes,
    Member,
    Name,
    Place,
    Replica,
    Spec,
    Stall,
    Version,
)

REPORTABLE = 2**48  # above any generation that a job can come to; a garbage one leaves room for those that follow it
STEPS = 64  # so many steps of checkpoints a record may name
LONGEST = 4096  # characters of one text
LARGEST = 1_000_000  # bytes of one value; etcd refuses more than about 1.5 MiB


def dumps(value: Mapping[str, Any]) -> bytes:
    """Canonical JSON: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def clipped(text: str) -> str:
    """The text, or so much of it as `Reader.text` takes."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def loads(raw: bytes, what: str) -> dict[str, Any]:
    """A JSON object, or RecordError.  `what` names the value in the error."""
    if len(raw) > LARGEST:
        raise RecordError(f"{what} has {len(raw)} bytes, more than {LARGEST}")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{what} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RecordError(f"{what} is a {type(value).__name__}, not a JSON object")
    return value


class Reader:
    """Takes typed fields out of a JSON object, with errors that name the value and the field."""

    def __init__(self, value: Mapping[str, Any], what: str) -> None:
        self.value, self.what = value, what

    def text(self, key: str, default: str | None = None) -> str:
        """A string of at most `LONGEST` characters."""
        found = self.value.get(key, default)
        if not isinstance(found, str) or len(found) > LONGEST:
            raise RecordError(
                f"{self.what}: {key!r} must be a string of at most {LONGEST} characters, not {found!r:.80}"
            )
        return found

    def number(self, key: str, default: int | None = None) -> int:
        """An integer from 0 to 2**62."""
        found = self.value.get(key, default)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**62:
            raise RecordError(f"{self.what}: {key!r} must be an integer from 0, not {found!r:.80}")
        return found

    def optional_number(self, key: str) -> int | None:
        """An integer, or None where the field is null or absent."""
        return None if self.value.get(key) is None else self.number(key)

    def generation(self, key: str, default: int | None = None, limit: int = REPORTABLE) -> int:
        """A generation below `limit`."""
        found = self.number(key, default)
        if found >= limit:
            raise RecordError(f"{self.what}: {key!r} is no generation that a job can have come to: {found}")
        return found

    def seconds(self, key: str) -> float:
        """A time from 0 to a million seconds."""
        found = self.value.get(key)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 <= found <= 1e6:
            raise RecordError(f"{self.what}: {key!r} must be a number of seconds, not {found!r:.80}")
        return float(found)

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean."""
        found = self.value.get(key, default)
        if not isinstance(found, bool):
            raise RecordError(f"{self.what}: {key!r} must be true or false, not {found!r:.80}")
        return found

    def version(self, key: str) -> Version | None:
        """A version [generation, step], or None."""
        found = self.value.get(key)
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != 2 or not all(type(x) is int and x >= 0 for x in found):
            raise RecordError(f"{self.what}: {key!r} must be [generation, step], not {found!r:.80}")
        return Version(*found)

    def items(self, key: str, read: Callable[[Any], Any]) -> tuple[Any, ...]:
        """A list, each item read by `read`."""
        found = self.value.get(key, [])
        if not isinstance(found, list):
            raise RecordError(f"{self.what}: {key!r} must be a list, not {found!r:.80}")
        return tuple(read(item) for item in found)


def as_object(value: Any, what: str) -> Reader:
    """A reader of a nested object."""
    if not isinstance(value, dict):
        raise RecordError(f"{what} must be an object, not {value!r:.80}")
    return Reader(value, what)


# ---------------------------------------------------------------- members


def encode_member(member: Member) -> bytes:
    """A member's record, with the fields that this version did not know."""
    known = {f.name: getattr(member, f.name) for f in fields(member) if f.name != "unknown"}
    known["stall"] = None if member.stall is None else asdict(member.stall)
    return dumps({**member.unknown, **known})


def decode_member(raw: bytes, what: str) -> Member:
    """A member's record; RecordError if it does not fit.  `what` is its key."""
    value = loads(raw, what)
    reader = Reader(value, what)
    known = {f.name for f in fields(Member)}
    return Member(
        worker_id=reader.text("worker_id"),
        incarnation=reader.text("incarnation"),
        agent=reader.text("agent"),
        host=reader.text("host"),
        address=address(reader.text("address"), what),
        coordinate=reader.optional_number("coordinate"),
        built=reader.flag("built"),
        draining=reader.flag("draining"),
        finished=reader.flag("finished"),
        pristine=reader.flag("pristine", True),
        ready=reader.generation("ready", 0),
        left=reader.generation("left", 0),
        incomplete=reader.generation("incomplete", 0),
        torn=reader.generation("torn", 0),
        committed=reader.version("committed"),
        prepared=reader.version("prepared"),
        gone=reader.items("gone", lambda item: decode_name(item, what)),
        absent=reader.items("absent", lambda item: decode_name(item, what)),
        answered=reader.generation("answered", 0),
        stall=None if value.get("stall") is None else read_stall(value["stall"], f"{what}.stall"),
        pid=reader.number("pid", 0),
        dead=reader.flag("dead"),
        restorable=steps(reader, "restorable"),
        keeps=reader.flag("keeps"),
        closed=reader.generation("closed", 0),
        team=reader.number("team", 0),
        format=reader.number("format", FORMAT),
        unknown={key: found for key, found in value.items() if key not in known},
    )


def steps(reader: Reader, key: str) -> tuple[int, ...]:
    """Steps, as in a list of what can be restored; RecordError if they do not fit."""
    found = reader.items(key, lambda item: Reader({"step": item}, reader.what).number("step"))
    if len(found) > STEPS:
        raise RecordError(f"{reader.what}: {key!r} has {len(found)} steps, more than {STEPS}")
    return found


def read_stall(value: Any, what: str) -> Stall:
    """A stall, as it also comes over the agent's socket; RecordError if it does not fit."""
    reader = as_object(value, what)
    kind = reader.text("kind")
    if kind not in (WAITS, BUSY, LONG, SILENT):
        raise RecordError(f"{what}: unknown kind {kind!r:.80}")
    where = reader.generation("generation"), reader.number("step"), reader.text("phase")
    return Stall(*where, kind, reader.seconds("seconds"), reader.seconds("limit"))


def address(text: str, what: str) -> str:
    """A `host:port` that can be connected to."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise RecordError(f"{what}: an address must be host:port, not {text!r:.80}")
    return text


def split_address(text: str) -> tuple[str, int]:
    """`host:port` -> (host, port); brackets around an IPv6 host are taken off."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


# ---------------------------------------------------------------- the spec


def encode_spec(spec: Spec) -> bytes:
    """The job's spec."""
    return dumps(
        {
            "format": FORMAT,
            "axes": {"pipe": spec.axes.pipe, "model": spec.axes.model},
            "min_replicas": spec.min_replicas,
            "max_replicas": spec.max_replicas,
            "desired": spec.desired,
        }
    )


def decode_spec(raw: bytes, what: str = "spec") -> Spec:
    """The job's spec; RecordError if it does not fit."""
    reader = Reader(loads(raw, what), what)
    axes = as_object(reader.value.get("axes"), f"{what}.axes")
    try:
        return Spec(
            Axes(axes.number("pipe"), axes.number("model")),
            reader.number("min_replicas"),
            reader.number("max_replicas"),
            reader.optional_number("desired"),
        )
    except LayoutError as error:
        raise RecordError(f"{what}: {error}") from None


# ---------------------------------------------------------------- places and replicas


def encode_name(name: Name) -> list[str]:
    """[worker_id, incarnation]."""
    return [name.worker_id, name.incarnation]


def decode_name(value: Any, what: str) -> Name:
    """[worker_id, incarnation] -> Name."""
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(x, str) and len(x) < 4096 for x in value):
        raise RecordError(f"{what}: a name must be [worker_id, incarnation], not {value!r:.80}")
    return Name(*value)


def encode_place(place: Place) -> dict[str, Any]:
    """One member's place."""
    known = {f.name: getattr(place, f.name) for f in fields(place)}
    return {**known, "name": encode_name(place.name)}


def decode_place(value: Any, what: str) -> Place:
    """One member's place; RecordError if it does not fit."""
    reader = as_object(value, what)
    return Place(
        decode_name(reader.value.get("name"), what),
        reader.text("host"),
        address(reader.text("address"), what),
        reader.number("since"),
        reader.text("agent", ""),
    )


def encode_replica(replica: Replica) -> dict[str, Any]:
    """One replica."""
    return {"slot": replica.slot, "formed": replica.formed, "places": [encode_place(p) for p in replica.places]}


def decode_replica(value: Any, what: str) -> Replica:
    """One replica; RecordError if it does not fit."""
    reader = as_object(value, what)
    places = reader.items("places", lambda item: decode_place(item, f"{what}.places"))
    return Replica(reader.number("slot"), reader.number("formed"), places)

"""Whatever anybody puts into etcd is read, or refused by a typed error: each kind of record, mutilated."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.rendezvous.accusation import (
    Accusation,
    AgentRecord,
    decode_accusation,
    decode_agent,
    encode_accusation,
    encode_agent,
)
from reknit.rendezvous.codec import LARGEST, decode_member, decode_spec, encode_member, encode_spec
from reknit.rendezvous.draining import DrainOrder, decode_order, encode_order
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.history import HistoryRecord, decode_record, encode_record
from reknit.rendezvous.keys import Assignment, Keys, decode_assignment, encode_assignment
from reknit.rendezvous.parts import decode_head, encode, head_of
from reknit.rendezvous.records import BUSY, RUNNING, Axes, Member, Name, Place, Plan, Replica, Spec, Stall, Version
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.shows import Show, Shown, decode_show, encode_show
from reknit.rendezvous.store.protocol import Entry

Decode = Callable[[bytes, str], Any]

KEYS, NAME = Keys("job"), Name("w0", "i")
STALL = Stall(3, 7, "backward", BUSY, 1.5, 30.0)
MEMBER = Member("w0", "i", "a", "h", "h:1", 0, committed=Version(1, 2), gone=(NAME,), stall=STALL, restorable=(4,))
PLAN = Plan(3, "why", RUNNING, replicas=(Replica(0, 2, (Place(NAME, "h", "h:1", 1),)),))
SHOWN = Shown(NAME, 7, "backward", 0.5, BUSY, 30.0, 12, 0.1, 1.5)

RECORDS: dict[str, tuple[Decode, str, bytes]] = {
    "member": (decode_member, KEYS.member("w0"), encode_member(MEMBER)),
    "spec": (decode_spec, KEYS.spec, encode_spec(Spec(Axes(2, 1), 1, 3, 2))),
    "head": (decode_head, KEYS.head, encode(PLAN)[0]),
    "agent": (decode_agent, KEYS.agent("a"), encode_agent(AgentRecord("a", "h", 7, "h:2", "n"))),
    "accusation": (decode_accusation, KEYS.accusation("a"), encode_accusation(Accusation("a", "b", 3, "why", False))),
    "assignment": (decode_assignment, KEYS.assignment("w0"), encode_assignment(Assignment(NAME, 1))),
    "order": (decode_order, KEYS.drain("w0"), encode_order(DrainOrder(NAME, 60.0, "me"))),
    "history": (
        decode_record,
        KEYS.history(3),
        encode_record(HistoryRecord(3, 1e9, "why", RUNNING, "loss", 2, 4, 1, 0.1)),
    ),
    "show": (decode_show, KEYS.show("a"), encode_show(Show("a", (SHOWN,), 1.0, 2.0))),
}

numbers = st.integers() | st.floats() | st.sampled_from([2**62, -1, 10**400, math.nan, math.inf, True])
anything = st.recursive(
    st.none() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in places(part, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], by)
    return copy


def read(kind: str, raw: bytes) -> Any:
    decode, key, _ = RECORDS[kind]
    try:
        return decode(raw, key)
    except RecordError as error:
        if len(str(error)) > 2000:
            pytest.fail("it would fill the log")
        return None


def entry(kind: str, raw: bytes) -> Entry:
    return Entry(RECORDS[kind][1], raw, 5, 5)


@pytest.mark.parametrize("kind", RECORDS)
def test_what_is_right_is_read(kind: str) -> None:
    assert read(kind, RECORDS[kind][2]) is not None


@given(st.sampled_from(sorted(RECORDS)), anything, st.data())
def test_a_record_of_which_a_part_is_something_else_is_read_or_refused(kind: str, by: Any, data: st.DataObject) -> None:
    value = json.loads(RECORDS[kind][2])
    path = data.draw(st.sampled_from(places(value)))
    read(kind, json.dumps(replaced(value, path, by)).encode())


@given(st.sampled_from(sorted(RECORDS)), st.data())
def test_a_record_that_lacks_a_part_is_read_or_refused(kind: str, data: st.DataObject) -> None:
    value = json.loads(RECORDS[kind][2])
    del value[data.draw(st.sampled_from(sorted(value)))]
    read(kind, json.dumps(value).encode())


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b"9" * 10_000,
        b'{"a":' * 50_000,
        b'{"reason":"' + b"x" * LARGEST + b'"}',
    ],
    ids=["empty", "bytes", "deep", "null", "number", "open", "large"],
)
def test_what_is_no_record_is_refused_counted_and_told_once(
    kind: str, raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    rejected = Rejected(logging.getLogger("test"))
    with caplog.at_level(logging.WARNING, logger="test"):
        assert rejected.read(entry(kind, raw), RECORDS[kind][0]) is None
        assert rejected.read(entry(kind, raw), RECORDS[kind][0]) is None
    assert rejected.count == 1
    assert len(caplog.messages) == 1
    assert len(caplog.messages[0]) < 2000


@pytest.mark.parametrize("kind", RECORDS)
def test_a_text_that_is_too_long_is_refused(kind: str) -> None:
    value = json.loads(RECORDS[kind][2])
    texts = [path for path in places(value) if path and isinstance(_at(value, path), str)]
    for path in texts:
        assert read(kind, json.dumps(replaced(value, path, "x" * 5000)).encode()) is None, path


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def test_the_head_of_a_plan_is_what_is_encoded() -> None:
    assert decode_head(RECORDS["head"][2], KEYS.head) == head_of(PLAN, decode_head(RECORDS["head"][2]).digest)

"""Records and plans survive the way to the store and back; whatever else lies there is refused by one typed error."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.rendezvous import codec, parts
from reknit.rendezvous.accusation import (
    Accusation,
    AgentRecord,
    decode_accusation,
    decode_agent,
    encode_accusation,
    encode_agent,
)
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.keys import NAME, Keys
from reknit.rendezvous.records import (
    BUSY,
    FINISHED,
    LONG,
    LOST,
    RUNNING,
    SILENT,
    WAITING,
    WAITS,
    Axes,
    Former,
    Member,
    Name,
    Place,
    Plan,
    Replica,
    Spec,
    Stall,
    Version,
)

small = st.integers(0, 2**40)
words = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)
versions = st.none() | st.builds(Version, small, small)
names = st.builds(Name, words, words)
some_names = st.lists(names, max_size=2).map(tuple)
seconds = st.floats(0, 1e6)
stalls = st.builds(Stall, small, small, words, st.sampled_from([WAITS, BUSY, LONG, SILENT]), seconds, seconds)
addresses = st.builds(lambda port: f"10.0.0.1:{port}", st.integers(1, 65535))
members = st.builds(
    Member,
    words,
    words,
    words,
    words,
    addresses,
    st.none() | small,
    *[st.booleans()] * 4,
    *[small] * 4,
    versions,
    versions,
    some_names,
    some_names,
    small,
    st.none() | stalls,
    small,
    st.booleans(),
    st.lists(small, max_size=8).map(tuple),
)
places = st.builds(Place, names, words, addresses, small, words)
agents = st.from_regex(NAME, fullmatch=True)


def test_whatever_a_reason_tells_of_everybody_can_read_the_plan_and_the_accusation() -> None:
    long = "a worker was put out; " * 1000
    plan = Plan(7, long, WAITING)
    raw, found = parts.encode(plan)
    head = parts.decode_head(raw)
    assert long.startswith(head.reason.removesuffix(" ..."))
    assert len(head.reason) == codec.LONGEST
    assert parts.decode_whole(head, found) == replace(plan, reason=head.reason)
    accusation = Accusation("agent", "another", 7, long)
    assert decode_accusation(encode_accusation(accusation), "accusations/agent").reason == head.reason


@st.composite
def plans(draw: Any) -> Plan:
    size = draw(st.integers(1, 3))
    slots = draw(st.lists(st.integers(0, 9), unique=True, max_size=3))
    replicas = tuple(
        Replica(slot, draw(small), tuple(draw(st.lists(places, min_size=size, max_size=size)))) for slot in slots
    )
    plan: Plan = draw(
        st.builds(
            Plan,
            st.integers(1, 2**40),
            st.text(max_size=20),
            st.sampled_from([RUNNING, WAITING, FINISHED, LOST]),
            st.just(replicas),
            st.lists(st.builds(Former, names, small, small, small), max_size=2).map(tuple),
            some_names,
            some_names,
            small,
            versions,
            st.booleans(),
            small,
            small,
            small,
            some_names,
            st.lists(st.tuples(words, small), max_size=2).map(tuple),
        )
    )
    return plan


@given(members)
def test_a_member_comes_back_as_it_was(member: Member) -> None:
    assert codec.decode_member(codec.encode_member(member), "m") == member


@given(st.builds(Accusation, agents, words, small, st.text(max_size=20), st.booleans()))
def test_an_accusation_comes_back_with_whom_its_key_names(accusation: Accusation) -> None:
    raw, key = encode_accusation(accusation), Keys("job").accusation(accusation.agent)
    assert decode_accusation(raw, key) == accusation


@given(st.builds(AgentRecord, agents, words, small, addresses, words))
def test_an_agents_record_comes_back_with_whom_its_key_names(record: AgentRecord) -> None:
    assert decode_agent(encode_agent(record), Keys("job").agent(record.agent)) == record


def test_a_record_of_a_version_without_evidence_stalls_and_tombstones_is_read() -> None:
    old = {"worker_id": "w", "incarnation": "i", "agent": "a", "host": "h", "address": "h:1"}
    assert codec.decode_member(json.dumps(old).encode(), "m") == Member("w", "i", "a", "h", "h:1")
    place = {"name": ["w", "i"], "host": "h", "address": "h:1", "since": 3}
    assert codec.decode_place(place, "p") == Place(Name("w", "i"), "h", "h:1", 3)
    plan = Plan(3, "why", WAITING, writer=1)
    rest = json.dumps({"slots": [], "former": [], "spares": []}).encode()
    assert parts.decode_whole(parts.decode_head(parts.encode(plan)[0]), {"plans/3/1/leader": rest}) == plan


def test_what_this_version_does_not_know_is_kept() -> None:
    member = Member("w", "i", "a", "h", "h:1")
    newer = {**json.loads(codec.encode_member(member)), "mood": ["good"], "format": 9}
    read = codec.decode_member(json.dumps(newer).encode(), "m")
    assert json.loads(codec.encode_member(replace(read, built=True)))["mood"] == ["good"]
    assert read.format == 9


@given(plans())
def test_a_plan_comes_back_from_its_parts(plan: Plan) -> None:
    raw, found = parts.encode(plan)
    head = parts.decode_head(raw)
    assert parts.decode_whole(head, found) == plan
    assert head.replicas == len(plan.replicas)
    assert all(key.startswith(f"plans/{plan.generation}/{plan.writer}/") for key in found)


@given(plans())
def test_a_view_comes_back_from_the_socket(plan: Plan) -> None:
    head = parts.decode_head(parts.encode(plan)[0])
    for replica in plan.replicas:
        peers = tuple(parts.Peer(r.slot, r.places[0]) for r in plan.replicas)
        view = parts.View(head, replica, peers)
        assert parts.decode_view(json.loads(json.dumps(parts.encode_view(view)))) == view
    assert parts.decode_view(parts.encode_view(parts.View(head))) == parts.View(head)


def test_a_missing_part_is_named() -> None:
    plan = Plan(3, "why", replicas=(Replica(0, 3, (Place(Name("w", "i"), "h", "h:1", 3),)),), writer=7)
    raw, found = parts.encode(plan)
    for key in list(found):
        if "data" not in key:
            with pytest.raises(RecordError, match=key):
                parts.decode_whole(parts.decode_head(raw), {k: v for k, v in found.items() if k != key})


def test_the_digest_tells_plans_apart() -> None:
    plan = Plan(3, "why", spares=(Name("a", "b"),))
    other = replace(plan, spares=(Name("a", "c"),))
    digests = [parts.decode_head(parts.encode(p)[0]).digest for p in (plan, plan, other)]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("spec", [Spec(Axes(2, 3), 1, 4), Spec(Axes(), 2, 8, 3)])
def test_a_spec_comes_back(spec: Spec) -> None:
    assert codec.decode_spec(codec.encode_spec(spec)) == spec


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    ["worker_id", "address", "axes", "generation", "state", "target", "spares", "slots", "peers", "places", "committed"]
)


@given(
    st.binary(max_size=60)
    | st.builds(lambda v: json.dumps(v).encode(), st.dictionaries(keys, json_values) | json_values)
)
def test_garbage_is_refused_by_a_typed_error_or_read_as_what_fits(raw: bytes) -> None:
    with pytest.raises(RecordError):
        codec.decode_member(raw, "key")
    with pytest.raises(RecordError):
        codec.decode_spec(raw)
    with pytest.raises(RecordError):
        parts.decode_head(raw)
    with pytest.raises(RecordError):
        decode_accusation(raw, "accusations/agent")
    with pytest.raises(RecordError):
        decode_agent(raw, "agents/agent")
    with suppress(RecordError):
        assert parts.decode_peers(raw, "key") == ()


some_fields = ["ready", "address", "committed", "built", "worker_id", "coordinate", "gone", "absent", "stall", "dead"]
some_fields += ["restorable"]


@given(members, st.sampled_from(some_fields), json_values)
def test_a_record_with_one_wrong_field_is_read_or_refused_but_never_crashes(
    member: Member, key: str, value: Any
) -> None:
    raw = json.dumps({**json.loads(codec.encode_member(member)), key: value}).encode()
    with suppress(RecordError):
        assert codec.decode_member(raw, "m").incarnation == member.incarnation


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"x" * 2_000_000, b"\xff\xfe", b'{"a":NaN}', b"1" * 5000])
def test_hostile_sizes_and_nesting_are_refused(raw: bytes) -> None:
    with pytest.raises(RecordError):
        codec.decode_member(raw, "m")


@pytest.mark.parametrize("text", ["", "h", ":1", "h:", "h:0", "h:65536", "h:-1", "h:x"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(RecordError):
        codec.address(text, "m")


def test_an_address_is_split_and_freed_of_brackets() -> None:
    assert codec.split_address("[::1]:80") == ("::1", 80)
    assert codec.split_address("host:80") == ("host", 80)


@pytest.mark.parametrize("slot", [float("inf"), float("nan"), -1, "0", 1.5, None, [0]])
def test_a_plan_whose_slots_are_garbage_is_refused_by_a_typed_error(slot: object) -> None:
    head = parts.decode_head(parts.encode(Plan(3, "why", WAITING, writer=1))[0])
    rest = json.dumps({"slots": [slot], "former": [], "spares": []}).encode()
    with pytest.raises(RecordError):
        parts.decode_whole(head, {"plans/3/1/leader": rest})


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "naps"}, {"seconds": -1}, {"seconds": "5"}, {"limit": float("inf")}, {"step": None}, {"phase": 3}],
)
def test_a_stall_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    told = {"generation": 1, "step": 2, "phase": "reduce", "kind": WAITS, "seconds": 3, "limit": 30}
    assert codec.read_stall(told, "stall") == Stall(1, 2, "reduce", WAITS, 3.0, 30.0)
    with pytest.raises(RecordError):
        codec.read_stall({**told, **wrong}, "stall")


@pytest.mark.parametrize("offence", [["w"], ["w", "1"], ["w", True], [1, 1], "w1", None, ["w", 1, 1]])
def test_a_plan_whose_offences_are_garbage_is_refused(offence: object) -> None:
    head = parts.decode_head(parts.encode(Plan(3, "why", WAITING, writer=1))[0])
    rest = json.dumps({"slots": [], "former": [], "spares": [], "offences": [offence]}).encode()
    with pytest.raises(RecordError):
        parts.decode_whole(head, {"plans/3/1/leader": rest})


def test_a_coordinate_and_its_index_are_two_names_of_one_place() -> None:
    axes = Axes(pipe=3, model=2)
    assert [axes.index(axes.coordinate(i)) for i in range(axes.size)] == list(range(6))
    assert axes.coordinate(3) == (1, 1)

"""The lines between agent and worker: what is a message, and what is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit.runtime.ipc.messages import MAX_LINE, LineReader, MessageError, decode, encode, read_greeting

HELLO = {"type": "hello", "channel": "control", "worker_id": "w0", "incarnation": "a"}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
messages = st.dictionaries(st.text(), json_values, max_size=5).map(lambda fields: {**fields, "type": "step"})


@given(st.lists(messages, max_size=5), st.data())
def test_messages_survive_any_fragmentation(sent: list[dict[str, object]], data: st.DataObject) -> None:
    stream = b"".join(encode(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    reader = LineReader()
    received = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += list(reader.feed(stream[begin:end]))
    assert received == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_a_message_error(data: bytes) -> None:
    try:
        for message in LineReader().feed(data + b"\n"):
            assert isinstance(message["type"], str)
    except MessageError:
        pass


@pytest.mark.parametrize(
    "line",
    [b"", b"x", b"[]", b"3", b"null", b'"type"', b"{}", b'{"type":3}', b'{"type":null}', b"\xff\xfe", b'{"type":"a"',
     b"[" * 50_000, b'{"type":"a","x":' + b"9" * 6000 + b"}"],
)  # fmt: skip
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(MessageError):
        decode(line)


def test_messages_before_a_bad_line_are_delivered() -> None:
    feed = LineReader().feed(encode({"type": "a"}) + b"rubbish\n" + encode({"type": "b"}))
    assert next(feed) == {"type": "a"}
    with pytest.raises(MessageError, match="not JSON"):
        next(feed)


def test_a_line_may_have_max_line_bytes_and_no_more() -> None:
    space = MAX_LINE - len(encode({"type": "a", "x": ""}))
    line = encode({"type": "a", "x": "y" * space})
    assert len(line) == MAX_LINE
    assert next(LineReader().feed(line))["x"] == "y" * space
    with pytest.raises(MessageError, match=f"takes {MAX_LINE + 1} bytes"):
        encode({"type": "a", "x": "y" * (space + 1)})


def test_an_endless_line_is_refused_before_its_end() -> None:
    reader = LineReader()
    assert list(reader.feed(b"x" * (MAX_LINE - 1))) == []
    with pytest.raises(MessageError, match=f"more than {MAX_LINE} bytes"):
        list(reader.feed(b"x"))


@pytest.mark.parametrize("message", [{}, {"type": None}, {"type": "a", "x": object()}, {"type": "a", "x": {1, 2}}])
def test_what_cannot_be_a_line_is_not_sent(message: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        encode(message)


def test_a_cycle_is_not_sent() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(MessageError):
        encode({"type": "a", "x": cycle})


def test_a_greeting_is_read() -> None:
    greeting = read_greeting({**HELLO, "address": "10.0.0.1:77"})
    assert (greeting.channel, greeting.worker_id, greeting.incarnation) == ("control", "w0", "a")
    assert greeting.details["address"] == "10.0.0.1:77"


@pytest.mark.parametrize(
    "change",
    [{"type": "hi"}, {"channel": "x"}, {"channel": None}, {"worker_id": ""}, {"worker_id": 3}, {"worker_id": "a\nb"},
     {"worker_id": "x" * 201}, {"incarnation": None}, {"incarnation": ["a"]}, {"channel": ["control"]}],
)  # fmt: skip
def test_a_bad_greeting_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MessageError):
        read_greeting({**HELLO, **change})


def test_messages_carry_what_json_carries() -> None:
    assert json.loads(encode({"type": "a", "loss": 1.5})) == {"type": "a", "loss": 1.5}


@pytest.mark.parametrize("name", ["a/b", "", "x" * 201, "-x", "a b", "a\n", "\u00e4", 5, None])
@pytest.mark.parametrize("field", ["worker_id", "incarnation"])
def test_a_name_that_cannot_be_part_of_a_key_is_refused_at_the_door(field: str, name: object) -> None:
    with pytest.raises(MessageError, match=field):
        read_greeting({**HELLO, field: name})

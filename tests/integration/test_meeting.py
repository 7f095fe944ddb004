"""The meeting point against clients that mean well, and others."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from reknit.runtime.communicator.meeting import LINE_LIMIT_BYTES, MeetingPoint
from reknit.runtime.communicator.meeting_client import MeetingClient, MemberLeft

PATIENCE_S = 20.0


@pytest.fixture
def point() -> Iterator[MeetingPoint]:
    point = MeetingPoint()
    yield point
    point.close()
    point.close()


@pytest.fixture
def enter(point: MeetingPoint) -> Iterator[Callable[[str], MeetingClient]]:
    clients: list[MeetingClient] = []

    def enter(prefix: str) -> MeetingClient:
        client = MeetingClient(prefix, time.monotonic() + PATIENCE_S)
        client.connect(point.address)
        clients.append(client)
        return client

    yield enter
    for client in clients:
        client.close()


def test_all_get_what_all_announced_and_meetings_do_not_mix(enter: Callable[[str], MeetingClient]) -> None:
    first, second, other = enter("a"), enter("a"), enter("b")
    first.set("0", b"\x00\xffzero")
    other.set("1", b"not this")
    answers: list[list[bytes]] = []
    waiting = threading.Thread(target=lambda: answers.append(first.get(["0", "1"])))
    waiting.start()
    second.set("1", b"one")
    assert second.get(["1", "0", "1"]) == [b"one", b"\x00\xffzero", b"one"]
    waiting.join()
    assert answers == [[b"\x00\xffzero", b"one"]]


def test_keys_go_with_their_connection_and_who_waits_is_told(enter: Callable[[str], MeetingClient]) -> None:
    leaving, staying = enter("a"), enter("a")
    leaving.set("0", b"here")
    assert staying.get(["0"]) == [b"here"]
    told = threading.Timer(0.02, leaving.close)
    told.start()
    with pytest.raises(MemberLeft) as caught:
        staying.get(["0", "1"])
    assert caught.value.key == "0"
    # The name is free again.
    enter("a").set("0", b"another")
    assert staying.get(["0"]) == [b"another"]


def test_who_waits_in_vain_knows_for_whom(point: MeetingPoint) -> None:
    client = MeetingClient("a", time.monotonic() + 0.4)
    client.connect(point.address)
    client.set("1", b"here")
    with pytest.raises(TimeoutError):
        client.get(["0", "1", "2"])
    assert client.missing == ("0", "2")
    assert client.unanswered_s < 0.3
    client.close()


def test_a_host_that_never_answers_is_known_by_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = MeetingClient("a", time.monotonic() + 0.4)
        client.connect(silent.getsockname())
        with pytest.raises(TimeoutError):
            client.get(["0"])
        assert client.unanswered_s > 0.2
        client.close()


def look_until_told(client: MeetingClient) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        client.look()


def test_who_has_got_all_hears_of_who_leaves_until_it_does_not_care(
    point: MeetingPoint, enter: Callable[[str], MeetingClient]
) -> None:
    leaving, caring, carefree = enter("a"), enter("a"), enter("a")
    leaving.set("0", b"here")
    caring.get(["0"])
    carefree.get(["0"])
    caring.look()
    carefree.let_go()
    carefree.set("1", b"")
    caring.get(["0", "1"])  # what came before is known by now
    leaving.close()
    with pytest.raises(MemberLeft) as caught:
        look_until_told(caring)
    assert caught.value.key == "0"
    carefree.look()
    point.close()
    with pytest.raises(ConnectionError):
        look_until_told(caring)


def test_the_deadline_holds_and_shut_frees_a_blocked_wait(point: MeetingPoint) -> None:
    hurried = MeetingClient("a", time.monotonic() + 0.1)
    hurried.connect(point.address)
    with pytest.raises(TimeoutError):
        hurried.get(["never"])
    hurried.close()
    patient = MeetingClient("a", time.monotonic() + PATIENCE_S)
    patient.connect(point.address)
    threading.Timer(0.02, patient.shut).start()
    started = time.monotonic()
    with pytest.raises(OSError, match="closed the connection"):
        patient.get(["never"])
    assert time.monotonic() - started < PATIENCE_S / 2
    patient.close()


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1\r\n",
        b"\xff\xfe\x00\n",
        b"[" * 100_000 + b"\n",
        b"null\n",
        b'{"set": "a/0"}\n',
        b'{"set": 1, "value": "x"}\n',
        b'{"get": []}\n',
        b'{"get": [{}]}\n',
        json.dumps({"get": ["k"] * 5000}).encode() + b"\n",
        b"x" * (LINE_LIMIT_BYTES + 2),
        b'{"set": "a/taken", "value": "stolen"}\n',
        b"".join(b'{"set": "a/%d", "value": "x"}\n' % key for key in range(100)),
    ],
    ids=lambda line: repr(line[:20]),
)
def test_nonsense_closes_its_own_connection_only(
    point: MeetingPoint, enter: Callable[[str], MeetingClient], line: bytes
) -> None:
    member = enter("a")
    member.set("taken", b"mine")
    assert member.get(["taken"]) == [b"mine"]
    with socket.create_connection(point.address, timeout=PATIENCE_S) as stranger:
        try:
            stranger.sendall(line)
            while stranger.recv(4096):
                pass
        except ConnectionError:
            pass
    assert member.get(["taken"]) == [b"mine"]


def test_an_answer_larger_than_any_buffer_arrives_whole(enter: Callable[[str], MeetingClient]) -> None:
    client = enter("a")
    for key in range(8):
        client.set(str(key), bytes([key]) * 200_000)
    keys = [str(key % 8) for key in range(64)]
    assert [(value[0], len(value)) for value in client.get(keys)] == [(int(key), 200_000) for key in keys]

"""The agent's HTTP server on real sockets: whatever knocks there, a probe gets its answer, and all of it is bounded."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.desk import Desk

from reknit.health import http_server
from reknit.health.addresses import join_address, parse_address
from reknit.health.http import Pages
from reknit.health.http_server import REQUEST_BYTES, HttpServer
from reknit.runtime.serving import HttpAddressError

CONNECTIONS = 8
Wait = Callable[..., None]


@pytest.fixture
def server(wait_until: Wait) -> Iterator[HttpServer]:
    pages = Pages(metrics=lambda: b"up 1\n" * 100_000, ready=lambda: (True, "ok"), healthy=lambda: (True, "ok"))
    server = HttpServer(pages, "127.0.0.1", 0, CONNECTIONS)
    server.address = server.start()  # type: ignore[attr-defined]
    yield server
    server.close()
    assert server.connections == 0
    # one whose connection is closed already may take a moment to end
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("reknit-http")])


def connect(server: HttpServer, said: bytes = b"") -> socket.socket:
    sock = socket.create_connection(server.address, timeout=10.0)  # type: ignore[attr-defined]
    sock.sendall(said)
    return sock


def answer(sock: socket.socket) -> bytes:
    """All that comes until the server closes."""
    with sock:
        received = b""
        while part := sock.recv(65536):
            received += part
        return received


def ask(server: HttpServer, said: bytes) -> bytes:
    return answer(connect(server, said))


def probe(server: HttpServer) -> float:
    """Seconds until a probe was answered."""
    began = time.monotonic()
    assert ask(server, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").endswith(b"\r\n\r\nok\n")
    return time.monotonic() - began


def test_a_browser_and_an_old_client_are_answered(server: HttpServer) -> None:
    base = f"http://{join_address(*server.address)}"  # type: ignore[attr-defined]
    with urllib.request.urlopen(base, timeout=10.0) as page:
        assert page.status == 200
        assert b"<!doctype html>" in page.read()
    with urllib.request.urlopen(f"{base}/metrics?name[]=up", timeout=10.0) as metrics:
        assert len(metrics.read()) == 500_000
    head = ask(server, b"HEAD /readyz HTTP/1.0\r\n\r\n")
    assert b"\r\nConnection: close\r\n" in head
    assert head.endswith(b"\r\n\r\n")
    date = head.partition(b"\r\nDate: ")[2].partition(b"\r\n")[0].decode()
    assert abs(parsedate_to_datetime(date).timestamp() - time.time()) < 5.0
    assert b"404" in ask(server, b"GET /%2e%2e/etc/passwd HTTP/1.1\r\n\r\n").splitlines()[0]


def test_one_that_sends_a_body_gets_to_read_that_it_may_not(server: HttpServer) -> None:
    said = b"POST /status HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 50000\r\n\r\n" + b"x" * 50000
    assert ask(server, said).startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET / HTTP/x\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls? \r\n\r\n", b"400"),
        (b"GET /\xff\xfe\x00<script> HTTP/1.1\r\nHost: \xff\r\n\r\n", b"404"),
        (b"one two three four\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /" + b"a" * 2 * REQUEST_BYTES + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 2 * REQUEST_BYTES, b"431"),
        (b"GET /healthz HTTP/1.1\r\nno colon\r\n\xff: \x00\r\n\r\n", b"200"),
        (b"\r\n\r\n", None),
    ],
)
def test_what_is_no_request_is_refused_and_the_next_one_is_answered(
    server: HttpServer, said: bytes, code: bytes | None
) -> None:
    received = ask(server, said)
    assert received.split(b" ")[1:2] == ([] if code is None else [code])
    assert b"<script>" not in received
    probe(server)


def test_slow_clients_keep_no_probe_out(server: HttpServer, wait_until: Wait) -> None:
    """A slowloris: all connections are taken by clients that send a little now and then and never finish."""
    slow = [connect(server, b"GET / HTTP/1.1\r\n") for _ in range(CONNECTIONS)]
    wait_until(lambda: server.connections == CONNECTIONS)
    for number in range(5):
        for sock in slow:
            with contextlib.suppress(OSError):  # those that had to make room
                sock.sendall(b"x-%d: y\r\n" % number)
        assert probe(server) < 1.0
    for sock in slow:
        sock.close()


def test_a_client_that_never_finishes_is_cut_off(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.3)
    sock, ended = connect(server, b"GET / HTTP/1.1\r\n"), threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(0.05):
                sock.sendall(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    began = time.monotonic()
    received = answer(sock)
    ended.set()
    dripping.join()
    assert received.startswith(b"HTTP/1.1 408 ")
    assert 0.25 < time.monotonic() - began < 5.0


def test_a_client_that_does_not_take_its_answer_is_cut_off(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    monkeypatch.setattr(http_server, "ANSWER_SECONDS", 0.3)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[union-attr]
    sock.connect(server.address)  # type: ignore[attr-defined]
    sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    wait_until(lambda: server.connections == 1)
    wait_until(lambda: server.connections == 0, 10.0, "the end of the connection")
    sock.close()


def test_those_who_do_not_take_their_answers_keep_no_probe_out(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, wait_until: Wait
) -> None:
    monkeypatch.setattr(http_server, "SOON_SECONDS", 0.1)
    server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # type: ignore[union-attr]
    slow = [socket.socket() for _ in range(CONNECTIONS)]
    for sock in slow:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect(server.address)  # type: ignore[attr-defined]
        sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    wait_until(lambda: server.connections == CONNECTIONS)
    assert probe(server) < 5.0, "half of the time that they have"
    for sock in slow:
        sock.close()


def test_a_flood_of_connections_is_bounded(server: HttpServer, wait_until: Wait) -> None:
    most, ended = 0, threading.Event()

    def flood() -> None:
        held: list[socket.socket] = []
        while not ended.is_set():
            held.append(connect(server))
            if len(held) > 40:
                held.pop(0).close()
        for sock in held:
            sock.close()

    def watch() -> None:
        nonlocal most
        while not ended.is_set():
            here = sum(thread.name == "reknit-http-connection" for thread in threading.enumerate())
            most = max(most, server.connections, here)

    threads = [threading.Thread(target=target) for target in (flood, flood, watch)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: most == CONNECTIONS)
        answered = 0
        for _ in range(20):  # among the first ones that go when there is no room, but most get through
            with contextlib.suppress(OSError, AssertionError):
                probe(server)
                answered += 1
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    # A thread that has left its place may still be on its way out.
    assert CONNECTIONS <= most <= 2 * CONNECTIONS
    assert answered > 10
    probe(server)


def test_an_end_does_not_wait_for_clients(server: HttpServer, wait_until: Wait) -> None:
    held = [connect(server, b"GET / HTTP/1.1\r\n") for _ in range(5)]
    wait_until(lambda: server.connections == 5)
    began = time.monotonic()
    server.close()
    assert time.monotonic() - began < 2.0
    for sock in held:
        assert answer(sock) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_a_port_that_is_taken_cannot_be_had(server: HttpServer) -> None:
    second = HttpServer(server.application, *server.address)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="in use"):
        second.start()
    second.close()


def test_ipv6_is_served_too(wait_until: Wait) -> None:
    def application(environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [])
        return [environ["REMOTE_ADDR"].encode()]

    for host in ("::1", "::"):
        server = HttpServer(application, host, 0)
        try:
            _, port = server.start()
        except OSError:
            pytest.skip("no IPv6 here")
        try:
            sock = socket.create_connection(("::1", port))
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert answer(sock).endswith(b"\r\n\r\n::1")
            if host == "::":
                sock = socket.create_connection(("127.0.0.1", port))
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                assert answer(sock).endswith(b"127.0.0.1")
        finally:
            server.close()


@pytest.mark.parametrize(
    ("http", "told"), [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "10.1.2.3"), ("localhost:0", "localhost")]
)
def test_an_agent_tells_where_others_reach_its_pages(tmp_path: Path, http: str, told: str) -> None:
    desk = Desk(tmp_path, http=http, address="10.1.2.3")
    serving = desk.agent.serving
    try:
        host, port = parse_address(serving.start())
        assert host == told
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10.0) as answer:
            assert answer.read() == b"starting\n"
        with pytest.raises(HttpAddressError, match=rf"--http 127.0.0.1:{port} cannot be bound: Address already in use"):
            Desk(tmp_path, http=f"127.0.0.1:{port}").agent.serving.start()
    finally:
        serving.close()
        desk.log.close()

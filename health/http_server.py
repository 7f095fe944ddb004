"""Serves a WSGI application to whoever connects, within fixed bounds.

It runs inside an agent, whose own work must not suffer from what knocks at this port.  So there are so many connections
and no more, each one gets so many seconds and bytes for its request, then one answer, and is closed.  When all are
taken, the one that has waited longest without completing its request, or takes its answer too slowly, makes room:
clients that only sit there can't keep a probe out.
"""

from __future__ import annotations

import io
import logging
import math
import socket
import sys
import threading
import time
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

log = logging.getLogger("reknit.http")

CONNECTIONS = 32  # at once
REQUEST_BYTES = 16 * 1024
REQUEST_SECONDS = 5.0  # until it is complete
ANSWER_SECONDS, SOON_SECONDS = 10.0, 1.0  # to take the answer; who takes longer than soon makes room for others
LINGER_SECONDS, LINGER_BYTES = 1.0, 64 * 1024  # for what a client still sends when it has its answer
BREATH = 0.1  # seconds, when the process has no descriptor left for another connection


class TooLarge(Exception):
    """A request of more than REQUEST_BYTES."""


class HttpServer:
    """One listening socket, a thread that accepts, and one for each connection.  The constructor opens nothing."""

    def __init__(self, application: WSGIApplication, host: str, port: int, connections: int = CONNECTIONS) -> None:
        self.application, self._address, self._most = application, (host, port), connections
        self._listener: socket.socket | None = None
        self._acceptor = threading.Thread(target=self._accept, name="reknit-http", daemon=True)
        self._changed = threading.Condition()
        self._open: dict[_Connection, threading.Thread] = {}  # oldest first

    def start(self) -> tuple[str, int]:
        """Listen and serve; returns the address: the port that the kernel chose for 0.  Raises OSError."""
        host, port = self._address
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._listener = socket.create_server(
            (str(address[0]), port), family=family, backlog=self._most, dualstack_ipv6=address[0] == "::"
        )
        self._acceptor.start()
        return host, self._listener.getsockname()[1]

    def close(self) -> None:
        """Stop listening, cut every connection off.  Without effect if it never started."""
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        with self._changed:
            for connection in self._open:
                connection.cut()
            self._changed.notify_all()
        self._acceptor.join()
        listener.close()
        for thread in list(self._open.values()):
            thread.join(timeout=1.0)  # one that is still being answered ends with its answer

    @property
    def connections(self) -> int:
        """How many there are now."""
        return len(self._open)

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None and self._listener is listener:
            try:
                sock, peer = listener.accept()
            except OSError as error:
                if self._listener is listener:
                    log.warning("no connection could be accepted: %s", error)
                    time.sleep(BREATH)
                continue
            if self._make_room():
                self._serve(_Connection(self, sock, str(peer[0])))
            else:
                sock.close()

    def _make_room(self) -> bool:
        """Wait until one more may come; the longest idle one goes for it.  False if this server closes."""
        with self._changed:
            while len(self._open) >= self._most and self._listener is not None:
                dispensable = next((connection for connection in self._open if connection.dispensable), None)
                if dispensable is not None:
                    dispensable.cut()
                # Whoever was cut off leaves at once; one that is being answered leaves in bounded time.
                self._changed.wait(timeout=BREATH)
            return self._listener is not None

    def _serve(self, connection: _Connection) -> None:
        thread = threading.Thread(target=self._run, args=(connection,), name="reknit-http-connection", daemon=True)
        with self._changed:
            self._open[connection] = thread
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had
            log.warning("a connection could not be served: %s", error)
            self._forget(connection)

    def _run(self, connection: _Connection) -> None:
        try:
            connection.serve()
        except OSError as error:
            log.debug("a connection ended early: %s", error)
        except Exception:
            log.exception("a connection could not be served")
        finally:
            self._forget(connection)

    def _forget(self, connection: _Connection) -> None:
        with self._changed:
            del self._open[connection]
            connection.sock.close()
            self._changed.notify_all()


class _Bounded(io.RawIOBase):
    """What comes from a socket until `deadline`, and up to `left` bytes.  Raises TimeoutError or TooLarge."""

    def __init__(self, sock: socket.socket, deadline: float, left: int) -> None:
        self._sock, self._deadline, self._left = sock, deadline, left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise TooLarge
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._sock.settimeout(seconds)
        count = self._sock.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


class _Connection(BaseHTTPRequestHandler):
    """One connection, one request, one answer; the standard library reads the request.

    `idle`: its request is not complete, or it has its answer.
    """

    def __init__(self, server: HttpServer, sock: socket.socket, peer: str) -> None:
        # Not the base class's, which would serve at once: this thread is the one that accepts.
        self._server, self.sock, self._peer = server, sock, peer
        self.idle = True
        self._taken_by = math.inf  # when it should have taken its answer
        self.command, self.request_version = "", "HTTP/1.1"

    @property
    def dispensable(self) -> bool:
        """Whether it may be cut off for another one: it is idle, or takes its answer slowly."""
        return self.idle or time.monotonic() > self._taken_by

    def cut(self) -> None:
        """End it from another thread, which must hold the server's lock."""
        self.idle, self._taken_by = False, math.inf
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def serve(self) -> None:
        """Read the request, write the answer.  Raises OSError if the client is gone."""
        self.rfile = io.BufferedReader(_Bounded(self.sock, time.monotonic() + REQUEST_SECONDS, REQUEST_BYTES))
        try:
            self.raw_requestline = self.rfile.readline()
            if not self.raw_requestline or not self.parse_request():
                return
        except TooLarge:
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {REQUEST_BYTES} bytes")
            return
        except TimeoutError:
            self.send_error(HTTPStatus.REQUEST_TIMEOUT, f"not complete after {REQUEST_SECONDS:g} s")
            return
        self.idle = False
        self._answer()

    def _answer(self) -> None:
        status, headers = "500 Internal Server Error", [("Content-Length", "0")]

        def start_response(given: str, fields: list[tuple[str, str]], _: object = None) -> Any:
            nonlocal status, headers
            status, headers = given, fields

        body = b"".join(self._server.application(self._environ(), start_response))
        self._write(status, headers, body)

    def _environ(self) -> dict[str, Any]:
        path, _, query = self.path.partition("?")
        host, port = self.sock.getsockname()[:2]
        environ = {
            "REQUEST_METHOD": self.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(path, "latin-1"),
            "QUERY_STRING": query,
            "SERVER_NAME": host,
            "SERVER_PORT": str(port),
            "SERVER_PROTOCOL": self.request_version,
            "REMOTE_ADDR": self._peer,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(),  # nothing here reads a body
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in self.headers.items():
            environ.setdefault(f"HTTP_{name.upper().replace('-', '_')}", value.strip())
        return environ

    def _write(self, status: str, headers: list[tuple[str, str]], body: bytes) -> None:
        # The page learns from the date how far the clock of its reader is off.
        usual = [("Date", formatdate(usegmt=True)), ("Connection", "close")]
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in [*usual, *headers])]
        self._taken_by = time.monotonic() + SOON_SECONDS
        self.sock.settimeout(ANSWER_SECONDS)
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        self._linger()

    def _linger(self) -> None:
        """Let the client have its answer: closing while it still sends (a body, say) would take it away from it."""
        self.idle = True
        self.sock.shutdown(socket.SHUT_WR)
        rest = _Bounded(self.sock, time.monotonic() + LINGER_SECONDS, LINGER_BYTES)
        buffer = bytearray(4096)
        with suppress(TooLarge, TimeoutError):
            while rest.readinto(buffer):
                pass

    # ---------------------------------------------------------------- what the base class calls

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that is none, in plain text."""
        status = HTTPStatus(code)
        body = f"{message or status.phrase}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        self._write(f"{status.value} {status.phrase}", headers, b"" if self.command == "HEAD" else body)

    def handle_expect_100(self) -> bool:
        """No body is wanted: the answer comes at once."""
        return True

    def log_message(self, *_: Any) -> None:
        """Requests are not logged: probes come every few seconds."""

"""The agent's side of its conversation with workers: JSON lines over a Unix socket.

A worker opens two connections.  The *lifeline* carries nothing but its greeting; a thread of its own holds it (see
`link`), so that its end is the worker's death, told by the kernel within milliseconds and without polling.  The
*control* connection carries messages both ways.  The server shows both together as one `Peer`, and reads all that a
worker said before it died before it tells of the death.

Nothing that a connection sends can harm the agent: lines are bounded, malformed ones are counted and end that
connection alone, and a worker that stops reading is dropped once its outbound buffer is full.
"""

from __future__ import annotations

import collections
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reknit.runtime.ipc.listening import listen
from reknit.runtime.ipc.messages import (
    CHUNK,
    CONTROL,
    LIFELINE,
    Greeting,
    LineReader,
    MessageError,
    encode,
    read_greeting,
)

_log = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True)
class Peer:
    """One attached worker.  `pid` and `uid` are the kernel's word; `hello` is all that its greeting said."""

    number: int
    worker_id: str
    incarnation: str
    pid: int
    uid: int
    hello: Mapping[str, Any] = field(repr=False, compare=False)


@dataclass(frozen=True)
class PeerEvent:
    """What happened to a peer: it attached, said `message`, or is gone for `reason`."""

    kind: Literal["opened", "message", "closed"]
    peer: Peer
    message: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


_Identity = tuple[str, str, int]  # worker_id, incarnation, pid


class _Connection:
    """One accepted connection; owned by the server's thread, but for `outbound`, which the server's lock guards."""

    def __init__(self, sock: socket.socket, pid: int, uid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.uid = uid
        self.since = time.monotonic()
        self.reader = LineReader()
        self.greeting: Greeting | None = None
        self.peer: Peer | None = None
        self.early: list[dict[str, Any]] = []  # said before the other channel was there
        self.outbound = bytearray()
        self.doomed = ""

    @property
    def identity(self) -> _Identity:
        assert self.greeting is not None
        return self.greeting.worker_id, self.greeting.incarnation, self.pid


class Server:
    """Listens for workers and tells `on_event` of them, on the server's own thread.

    `on_event` may be a queue's `put`; it should return soon, and what it raises is logged and goes no further.
    `lease_seconds`: workers are told that they may train on for so long when this agent is away.  `counters` says what
    was turned away: `refused`, `malformed`, `overflow`, `unnamed`, `accept_failed`.
    """

    def __init__(
        self,
        path: str | Path,
        on_event: Callable[[PeerEvent], None],
        *,
        outbound_limit: int = 4 << 20,
        hello_seconds: float = 10.0,
        lease_seconds: float | None = None,
    ) -> None:
        self.path = Path(path)
        self.counters: collections.Counter[str] = collections.Counter()
        self._on_event = on_event
        self._outbound_limit = outbound_limit
        self._hello_seconds = hello_seconds
        self._welcome = {"type": "welcome", "lease": lease_seconds}
        self._lock = threading.Lock()
        self._attached: dict[int, _Connection] = {}  # peer number → control connection
        self._dirty: set[_Connection] = set()
        self._channels: dict[_Identity, dict[str, _Connection]] = {}
        self._unpaired: set[_Connection] = set()
        self._numbers = 0
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._resume_accept: float | None = None
        self._thread = threading.Thread(target=self._serve, name="reknit-ipc", daemon=True)

    def start(self) -> None:
        """Open the socket (mode 0600, in a folder of mode 0700) and serve it on a thread.  Raises IpcError."""
        self._listener = listen(self.path)
        self._inode = self.path.stat().st_ino
        self._wake_receiver, self._wake_sender = socket.socketpair()
        for sock in (self._listener, self._wake_receiver, self._wake_sender):
            sock.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._thread.start()

    def send(self, peer: Peer, message: Mapping[str, Any]) -> bool:
        """Send from any thread, without ever waiting; False if the peer is gone.  Raises MessageError."""
        line = encode(message)
        with self._lock:
            connection = self._attached.get(peer.number)
            if connection is None or connection.doomed:
                return False
            if connection.outbound:
                connection.outbound += line
            else:
                connection.outbound += line[self._send_now(connection, line) :]
                if not connection.outbound and not connection.doomed:
                    return True
            if len(connection.outbound) > self._outbound_limit:
                self.counters["overflow"] += 1
                connection.doomed = f"it left more than {self._outbound_limit} bytes unread"
            self._dirty.add(connection)
        self._wake()
        return not connection.doomed

    def drop(self, peer: Peer, reason: str) -> None:
        """End both connections of a peer; "closed" follows on the server's thread."""
        with self._lock:
            connection = self._attached.get(peer.number)
            if connection is None:
                return
            connection.doomed = reason
            self._dirty.add(connection)
        self._wake()

    def close(self) -> None:
        """End all connections, without further events, and remove the socket's file."""
        if not self._thread.is_alive():
            return
        self._closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        try:
            while not self._closing:
                for key, mask in self._selector.select(self._timeout()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._wake_receiver:
                        self._drain_wake()
                    elif key.data.sock.fileno() >= 0:  # may have been closed by an earlier one of this round
                        self._attend(key.data, mask)
                self._tend()
        finally:
            self._shut()

    def _timeout(self) -> float | None:
        return 0.25 if self._unpaired or self._resume_accept is not None else None

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # Out of descriptors: the listener stays readable, so it must rest or this thread would spin.
            self.counters["accept_failed"] += 1
            _log.warning("cannot accept a worker's connection: %s", error)
            self._selector.unregister(self._listener)
            self._resume_accept = time.monotonic() + 0.5
            return
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if uid not in (0, os.geteuid()):
            self.counters["refused"] += 1
            _log.warning("refused a connection of user %d (process %d) on %s", uid, pid, self.path)
            sock.close()
            return
        sock.setblocking(False)
        connection = _Connection(sock, pid, uid)
        self._unpaired.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _attend(self, connection: _Connection, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            with self._lock:
                del connection.outbound[: self._send_now(connection, connection.outbound)]
                self._dirty.add(connection)
        if mask & selectors.EVENT_READ:
            self._read(connection, rounds=4)

    def _read(self, connection: _Connection, rounds: int) -> bool:
        """Read and handle up to `rounds` chunks; False once the connection has ended."""
        for _ in range(rounds):
            try:
                data = connection.sock.recv(CHUNK)
                for message in connection.reader.feed(data):
                    self._handle(connection, message)
            except BlockingIOError:
                return True
            except MessageError as error:
                self.counters["malformed"] += 1
                self._end(connection, f"it sent {error}")
                return False
            except OSError as error:
                self._end(connection, f"its connection failed: {error}")
                return False
            if connection.sock.fileno() < 0:
                return False
            if not data:
                self._end(connection, "its connection ended")
                return False
        return True

    def _handle(self, connection: _Connection, message: dict[str, Any]) -> None:
        if connection.greeting is None:
            connection.greeting = read_greeting(message)
            self._pair(connection)
        elif connection.greeting.channel == LIFELINE:
            raise MessageError("a line on its lifeline, which carries none")
        elif connection.peer is not None:
            self._tell(PeerEvent("message", connection.peer, message))
        elif len(connection.early) < 1000:
            connection.early.append(message)
        else:
            raise MessageError("more than 1000 lines before it opened its lifeline")

    def _pair(self, connection: _Connection) -> None:
        assert connection.greeting is not None
        channels = self._channels.setdefault(connection.identity, {})
        older = channels.get(connection.greeting.channel)
        if older is not None:
            self._end(older, "it connected anew")
            channels = self._channels.setdefault(connection.identity, {})
        channels[connection.greeting.channel] = connection
        if len(channels) < 2:
            return
        control = channels[CONTROL]
        assert control.greeting is not None
        self._numbers += 1
        worker_id, incarnation, pid = connection.identity
        peer = Peer(self._numbers, worker_id, incarnation, pid, connection.uid, control.greeting.details)
        for member in channels.values():
            member.peer = peer
            self._unpaired.discard(member)
        with self._lock:
            self._attached[peer.number] = control
        self.send(peer, self._welcome)
        self._tell(PeerEvent("opened", peer))
        for message in control.early:
            self._tell(PeerEvent("message", peer, message))
        control.early = []

    def _end(self, connection: _Connection, reason: str) -> None:
        """Close a connection and its sibling; tell of the peer's end after all that it said."""
        if connection.sock.fileno() < 0:
            return
        self._discard(connection)
        peer = connection.peer
        if peer is None:
            return
        with self._lock:
            control = self._attached.pop(peer.number, None)
        if control is None:
            return  # this is the sibling, whose end is already being told
        if control.sock.fileno() >= 0:
            while self._read(control, rounds=1) and _readable(control.sock):
                pass
        for sibling in list(self._channels.get(connection.identity, {}).values()):
            if sibling.peer is peer:
                self._discard(sibling)
        self._tell(PeerEvent("closed", peer, reason=reason))

    def _discard(self, connection: _Connection) -> None:
        if connection.sock.fileno() < 0:
            return
        self._selector.unregister(connection.sock)
        with self._lock:
            connection.sock.close()
            self._dirty.discard(connection)
        self._unpaired.discard(connection)
        if connection.greeting is not None:
            channels = self._channels.get(connection.identity, {})
            if channels.get(connection.greeting.channel) is connection:
                del channels[connection.greeting.channel]
            if not channels:
                self._channels.pop(connection.identity, None)

    def _tend(self) -> None:
        """Do what other threads asked for; end connections that never said whose they are; wake a resting listener."""
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        for connection in dirty:
            if connection.sock.fileno() < 0:
                continue
            if connection.doomed:
                self._end(connection, connection.doomed)
            else:
                interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbound else 0)
                self._selector.modify(connection.sock, interest, connection)
        now = time.monotonic()
        for connection in [each for each in self._unpaired if now - each.since > self._hello_seconds]:
            self.counters["unnamed"] += 1
            self._end(connection, "it did not open both channels in time")
        if self._resume_accept is not None and now >= self._resume_accept:
            self._resume_accept = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _send_now(self, connection: _Connection, data: bytes | bytearray) -> int:
        """How many bytes the kernel took (with the lock held); all of them if the peer is gone."""
        try:
            return connection.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            # Its end is about to be read; what it said before must be read first, so nothing is closed here.
            return len(data)

    def _tell(self, event: PeerEvent) -> None:
        try:
            self._on_event(event)
        except Exception:
            _log.exception("the handler of %s of worker %s failed", event.kind, event.peer.worker_id)

    def _wake(self) -> None:
        try:
            self._wake_sender.send(b"\0")
        except OSError:
            pass  # full (so the thread is waking anyway) or closed

    def _drain_wake(self) -> None:
        try:
            self._wake_receiver.recv(4096)
        except BlockingIOError:
            pass

    def _shut(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Connection):
                self._discard(key.data)
        self._selector.close()
        for sock in (self._listener, self._wake_receiver, self._wake_sender):
            sock.close()
        try:
            # Only our own: another agent may have taken the path over by now.
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            pass


def _readable(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False

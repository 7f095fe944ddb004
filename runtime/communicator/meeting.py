"""The meeting point: where the members of a new group find each other's addresses.

torch's own TCPStore does the same, and was measured to be unfit for building a group in milliseconds: its client and
its server each ask the name server, for every connection, what the peer's host is called (the address is written in
IPv6 form, so not even /etc/hosts answers).  One lost datagram costs the resolver's five seconds, the server's single
thread stands still meanwhile, and the answer is only ever printed.  A dead port costs its client 3-4 s whatever timeout
it was given, its socket cannot be had to end a blocked wait, and its keys stay for ever.

So this is a small server of our own.  One JSON object a line.  A key belongs to the connection that set it and goes
when that goes; who waits for it, or has got it, is told its name at once.  Who waits asks now and then which keys are
still missing, so that he knows for whom he waited when he gives up, and that the host of the meeting is there at all.
Nothing is trusted: a line that is not understood, or too long, closes its connection and harms nobody else.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field

from reknit.runtime.communicator.sockets import Address, KeepAlive, plain_address

LINE_LIMIT_BYTES = 1 << 20
KEYS_LIMIT = 4096
KEYS_LIMIT_PER_CONNECTION = 64
NAMED_LIMIT = 128  # missing keys that one answer names


@dataclass(eq=False)
class _Guest:
    """One connection at the server.  `company`: the keys that it asked for and whose end it wants to hear of."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    keys: set[str] = field(default_factory=set)
    waiting_for: list[str] | None = None
    company: frozenset[str] = frozenset()
    missing: set[str] = field(default_factory=set)


class MeetingPoint:
    """A server that holds keys while the connection that set them is open.  One thread, no clock, no disk.

    The constructor binds `host` (an address of this machine, `127.0.0.1` for one machine alone) on a free port,
    listens, and starts the thread.  `address` is what `Communicator.connect` takes.  OSError if it cannot be bound.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        address = plain_address(self._listener.getsockname())
        assert address is not None
        self.address: Address = address
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._values: dict[str, str] = {}
        self._guests: set[_Guest] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="reknit-meeting", daemon=True)
        self._thread.start()

    def keys(self, prefix: str) -> list[str]:
        """The keys that members have announced under a prefix and that stand at this moment.  From any thread."""
        return [key for key in list(self._values) if key.startswith(f"{prefix}/")]

    def close(self) -> None:
        """Stop listening, drop every connection, join the thread.  Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._wake_sender.close()
        self._thread.join()

    def _serve(self) -> None:
        while not self._closing:
            for selected, events in self._selector.select():
                guest = selected.data
                if guest is None:
                    if selected.fileobj is self._listener:
                        self._accept()
                    continue
                if events & selectors.EVENT_WRITE and guest in self._guests:
                    self._flush(guest)
                if events & selectors.EVENT_READ and guest in self._guests:
                    self._read(guest)
        for guest in list(self._guests):
            self._dismiss(guest)
        self._selector.close()
        self._listener.close()
        self._wake_receiver.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            # Out of descriptors, or the caller has gone again: the next one may fare better.
            time.sleep(0.001)
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        KeepAlive().apply(connection)
        guest = _Guest(connection)
        self._guests.add(guest)
        self._selector.register(connection, selectors.EVENT_READ, guest)

    def _read(self, guest: _Guest) -> None:
        try:
            data = guest.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        guest.received += data
        if not data or len(guest.received) > LINE_LIMIT_BYTES:
            self._dismiss(guest)
            return
        while guest in self._guests and (end := guest.received.find(b"\n")) >= 0:
            line = bytes(guest.received[:end])
            del guest.received[: end + 1]
            if not self._obey(guest, line):
                self._dismiss(guest)

    def _obey(self, guest: _Guest, line: bytes) -> bool:
        """Carry out one request; False if it makes no sense."""
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(request, dict):
            return False
        key, value, keys = request.get("set"), request.get("value"), request.get("get")
        if isinstance(key, str) and isinstance(value, str):
            return self._set(guest, key, value)
        if isinstance(keys, list) and 0 < len(keys) <= KEYS_LIMIT and all(isinstance(one, str) for one in keys):
            guest.waiting_for, guest.missing = keys, {one for one in keys if one not in self._values}
            guest.company = frozenset(keys)
            self._answer_if_complete(guest)
            return True
        if request.get("enough") is True:
            guest.company = frozenset()
            return True
        if request.get("who") is True:
            self._send(guest, {"missing": sorted(guest.missing)[:NAMED_LIMIT]})
            return True
        return False

    def _set(self, guest: _Guest, key: str, value: str) -> bool:
        if len(guest.keys) >= KEYS_LIMIT_PER_CONNECTION or (key in self._values and key not in guest.keys):
            return False
        guest.keys.add(key)
        self._values[key] = value
        for other in list(self._guests):
            if key in other.missing:
                other.missing.discard(key)
                self._answer_if_complete(other)
        return True

    def _answer_if_complete(self, guest: _Guest) -> None:
        if guest.waiting_for is not None and not guest.missing:
            answer: dict[str, object] = {"values": [self._values[key] for key in guest.waiting_for]}
            guest.waiting_for = None
            self._send(guest, answer)

    def _send(self, guest: _Guest, answer: dict[str, object]) -> None:
        guest.unsent += json.dumps(answer).encode() + b"\n"
        self._flush(guest)

    def _flush(self, guest: _Guest) -> None:
        try:
            sent = guest.connection.send(guest.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            # Its end of file follows by the reading side, where it is dismissed.
            sent = len(guest.unsent)
        del guest.unsent[:sent]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if guest.unsent else 0)
        self._selector.modify(guest.connection, events, guest)

    def _dismiss(self, guest: _Guest) -> None:
        if guest not in self._guests:
            return
        self._guests.discard(guest)
        self._selector.unregister(guest.connection)
        guest.connection.close()
        for key in guest.keys:
            self._values.pop(key, None)
        if self._closing:
            return
        for other in list(self._guests):
            lost = guest.keys & other.company
            if lost:
                other.waiting_for, other.missing, other.company = None, set(), frozenset()
                self._send(other, {"left": min(lost)})

"""A member's side of a meeting point (`meeting`): it announces itself, waits for the others, and hears who leaves."""

from __future__ import annotations

import base64
import binascii
import json
import select
import socket
import threading
import time

from reknit.runtime.communicator.sockets import Address, shut_down

ASK_EVERY_S = 1.0


class MemberLeft(ConnectionError):
    """A member closed its connection to the meeting point while others still waited for each other there."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the member that had announced {key!r} left the meeting point again")
        self.key = key


class MeetingClient:
    """One member's connection to a meeting point.  Used by one thread; of others only what says so may be called.

    `prefix` sets this meeting apart from all others at the same point; every member of it gives the same.  `deadline`
    is a `time.monotonic` value after which every call raises TimeoutError.  Other failures are
    ConnectionError or OSError.
    """

    def __init__(self, prefix: str, deadline: float) -> None:
        self.prefix = prefix
        self.missing: tuple[str, ...] = ()  # the keys that this client waits for, as the host last said
        self._deadline = deadline
        self._ask_every = min(ASK_EVERY_S, max(0.0, deadline - time.monotonic()) / 8)
        self._asked: float | None = None  # since when an answer is due
        self._socket: socket.socket | None = None
        self._received = bytearray()
        self._receiving = threading.Lock()
        self._shut = False

    @property
    def unanswered_s(self) -> float:
        """For how long the host has owed this client an answer, if only to its call.  From any thread."""
        asked = self._asked
        return time.monotonic() - asked if asked is not None else 0.0

    def connect(self, address: Address) -> None:
        """Open the connection.  A port where nobody listens fails at once, a silent host at the deadline."""
        family, kind, protocol, _, resolved = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        if not self._shut:
            self._socket.settimeout(self._remaining())
            self._asked = time.monotonic()
            self._socket.connect(resolved)
            self._asked = None
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._shut:
            raise ConnectionAbortedError("given up while the connection was made")

    def set(self, key: str, value: bytes) -> None:
        """Announce a value under this meeting's prefix.  Does not wait for the server."""
        self._send({"set": f"{self.prefix}/{key}", "value": base64.b64encode(value).decode()})

    def get(self, keys: list[str]) -> list[bytes]:
        """Wait until all the keys are there and return their values in order.  MemberLeft if one has gone again."""
        with self._receiving:
            self._send({"get": [f"{self.prefix}/{key}" for key in keys]})
            while (answer := self._take_answer()) is None:
                self._receive()
        try:
            values = [base64.b64decode(value) for value in answer["values"]]
        except (KeyError, TypeError, binascii.Error) as error:
            raise ConnectionError(f"the meeting point's answer makes no sense: {error!r}") from None
        self.missing = ()
        return values

    def look(self) -> None:
        """Without waiting: MemberLeft if somebody whose key was got has left, ConnectionError if the host has.

        From any thread; while another one is in `get`, which would hear of it, nothing happens.
        """
        if self._socket is None or not self._receiving.acquire(blocking=False):
            return
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if poll.poll(0):
                self._receive()
                self._take_answer()
        finally:
            self._receiving.release()

    def let_go(self) -> None:
        """From now on it does not matter who leaves: the host need not tell."""
        self._send({"enough": True})

    def shut(self) -> None:
        """From any thread: whatever this client is blocked in fails at once, and so do all later calls."""
        self._shut = True
        if self._socket is not None:
            shut_down(self._socket)

    def close(self) -> None:
        """Leave the meeting point; its keys go.  For the thread that uses the client.  Idempotent."""
        if self._socket is not None:
            self._socket.close()

    def _remaining(self) -> float:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("the deadline has passed")
        return remaining

    def _send(self, request: dict[str, object]) -> None:
        assert self._socket is not None
        self._socket.settimeout(self._remaining())
        self._socket.sendall(json.dumps(request).encode() + b"\n")

    def _receive(self) -> None:
        """Take in what the host says, asking now and then who is missing."""
        assert self._socket is not None
        self._socket.settimeout(min(self._remaining(), self._ask_every))
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            if self._asked is None:
                self._send({"who": True})
                self._asked = time.monotonic()
            return
        if not data:
            raise ConnectionResetError("the meeting point closed the connection")
        self._received += data

    def _take_answer(self) -> dict[str, list[str]] | None:
        """The next complete answer to `get`, if it has been received; MemberLeft."""
        while (end := self._received.find(b"\n")) >= 0:
            answer = json.loads(self._received[:end])
            del self._received[: end + 1]
            if "left" in answer:
                raise MemberLeft(self._plain(str(answer["left"])))
            if "missing" not in answer:
                return answer  # type: ignore[no-any-return]
            self._asked = None
            self.missing = tuple(self._plain(str(key)) for key in answer["missing"])
        return None

    def _plain(self, key: str) -> str:
        return key.removeprefix(f"{self.prefix}/")

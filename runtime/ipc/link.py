"""The worker's side of its conversation with the agent.

A worker trains on while its agent is away, for as long as the agent's lease stands; so the link reconnects by itself
and gives up, by calling `on_gone`, only when the lease must have ended.  What the worker reports goes to the kernel
before `report` returns: the agent reads it even if the worker is killed at the next instruction.
"""

from __future__ import annotations

import collections
import logging
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reknit.runtime.ipc.lifeline import Lifeline
from reknit.runtime.ipc.messages import CHUNK, CONTROL, LIFELINE, MAX_LINE, IpcError, LineReader, MessageError, encode

_KEPT_BYTES = 8 << 20
_WELCOME_SECONDS = 5.0

_log = logging.getLogger(__name__)
_links: weakref.WeakSet[Link] = weakref.WeakSet()


class Link:
    """One worker's connection to its agent.

    `hello` must hold `worker_id` and `incarnation`, and is said anew at each connection (see `set_hello`).  Both
    callbacks run on the link's own thread, in the process's normal descriptor table: `on_message(message)` in the
    order of sending, what it raises is logged; `on_gone()` once, `lease_seconds` (or as many as the agent's welcome
    says) after the agent was last there, or when it refuses this worker.
    """

    def __init__(
        self,
        path: str | Path,
        hello: Mapping[str, Any],
        on_message: Callable[[dict[str, Any]], None],
        on_gone: Callable[[], None],
        *,
        lease_seconds: float,
        retry_seconds: float = 0.05,
    ) -> None:
        self._path = str(path)
        self._on_message = on_message
        self._on_gone = on_gone
        self._lease = lease_seconds
        self._retry = retry_seconds
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None  # guarded by the lock, like the five below
        self._pending: collections.deque[bytes] = (
            collections.deque()
        )  # whole lines; of the first, _offset bytes are sent
        self._offset = 0
        self._pending_bytes = 0
        self._dropped = 0
        self._hello = dict(hello)
        self._lifeline = Lifeline(self._path, self._greeting(LIFELINE), retry_seconds)
        self._attached = threading.Event()
        self._ever_attached = False
        self._closing = False
        self._refused = ""
        self._wake_reader, self._wake_writer = -1, -1
        self._thread = threading.Thread(target=self._react, name="reknit-link", daemon=True)

    @property
    def attached(self) -> bool:
        """Whether the agent is there now and has welcomed this worker."""
        return self._attached.is_set()

    @property
    def dropped(self) -> int:
        """How many reported lines were dropped because the agent was away or slow."""
        return self._dropped

    @property
    def prompt_death(self) -> bool:
        """Whether the agent learns of this process's death before its memory is freed (the system may forbid it)."""
        return self._lifeline.private

    def start(self, connect_seconds: float = 30.0) -> None:
        """Connect, waiting for the agent if it is not there yet.  Opens sockets and two threads.  Raises IpcError."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        _links.add(self)
        self._lifeline.start()
        self._thread.start()
        if not self._attached.wait(connect_seconds):
            self.close()
            raise IpcError(
                f"no agent answered on {self._path} within {connect_seconds:g} s; "
                "start one (`reknit agent`), or start this script with `reknit run`"
            )

    def set_hello(self, hello: Mapping[str, Any]) -> None:
        """Replace what the next connection says first.  Raises MessageError if it cannot be sent."""
        with self._lock:
            before, self._hello = self._hello, dict(hello)
            try:
                self._lifeline.greeting = self._greeting(LIFELINE)
            except MessageError:
                self._hello = before
                raise

    def report(self, message: Mapping[str, Any], *, important: bool = False) -> bool:
        """Tell the agent, from any thread, without waiting for it; True if the kernel has taken the whole line.

        A line that cannot be sent now is dropped and counted, or, if it is important, kept and sent in order once the
        agent reads again.  Raises MessageError.  Not for signal handlers: it takes a lock.
        """
        line = encode(message)
        with self._lock:
            sent = 0
            if self._socket is not None and not self._pending:
                sent = _send_now(self._socket, line)
                if sent == len(line):
                    return True
            if (sent == 0 and not important) or self._pending_bytes + len(line) > _KEPT_BYTES:
                self._dropped += 1
                return False
            if not self._pending:
                self._offset = sent  # a line that was begun must be completed, or the next would be torn
            self._pending.append(line)
            self._pending_bytes += len(line)
        self._wake()
        return False

    def close(self, flush_seconds: float = 1.0) -> None:
        """End both connections; lines that are kept get `flush_seconds` to leave.  The agent takes this for death."""
        deadline = time.monotonic() + flush_seconds
        while self._pending and self._attached.is_set() and time.monotonic() < deadline:
            time.sleep(0.002)
        self._closing = True
        self._wake()
        self._lifeline.stop()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=_WELCOME_SECONDS)
        with self._lock:
            for descriptor in (self._wake_writer, self._wake_reader):
                if descriptor >= 0 and not self._thread.is_alive():
                    os.close(descriptor)
            self._wake_writer = self._wake_reader = -1

    def _greeting(self, channel: str) -> bytes:
        return encode({**self._hello, "type": "hello", "channel": channel})

    def _react(self) -> None:
        lost_at = time.monotonic()
        while not self._closing:
            attached = self._attach()
            if attached is not None:
                sock, reader = attached
                self._converse(sock, reader)
                self._detach()
                if self._closing:
                    break
                lost_at = time.monotonic()
                if self._refused:  # it would be so again and again
                    _log.error("the agent on %s refuses this worker: %s", self._path, self._refused)
                    self._say_gone()
                    break
                _log.warning("the agent on %s is gone; going on without it, and trying again", self._path)
            # Before the first welcome `start` is still waiting, with a deadline of its own.
            elif self._ever_attached and time.monotonic() - lost_at >= self._lease:
                self._say_gone()
                break
            self._rest(self._retry)

    def _attach(self) -> tuple[socket.socket, LineReader] | None:
        """Connect, greet and wait to be welcomed; None if the agent is not there."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        reader = LineReader()
        try:
            sock.settimeout(_WELCOME_SECONDS)
            sock.connect(self._path)
            with self._lock:
                greeting = self._greeting(CONTROL)
            sock.sendall(greeting)
            # Up to the welcome's own end, so that what follows it is left for the conversation.
            welcome = next(reader.feed(_receive_line(sock)))
            if welcome["type"] != "welcome":
                raise MessageError(f"expected a welcome, got {welcome['type']!r}")
            if isinstance(welcome.get("lease"), (int, float)):
                self._lease = float(welcome["lease"])
        except (OSError, MessageError, StopIteration):
            sock.close()
            return None
        sock.setblocking(False)
        with self._lock:
            self._socket = sock
            self._offset = 0
            self._flush()
        self._ever_attached = True
        self._attached.set()
        return sock, reader

    def _detach(self) -> None:
        self._attached.clear()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None

    def _converse(self, sock: socket.socket, reader: LineReader) -> None:
        """Hand on messages until the connection ends."""
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        while not self._closing:
            poll.register(sock, select.POLLIN | (select.POLLOUT if self._pending else 0))
            ready = dict(poll.poll())
            if self._wake_reader in ready:
                self._drain_wake()
            if ready.get(sock.fileno(), 0) & select.POLLOUT:
                with self._lock:
                    self._flush()
            if ready.get(sock.fileno(), 0) & ~select.POLLOUT:
                try:
                    data = sock.recv(CHUNK)
                    for message in reader.feed(data):
                        if message["type"] == "refused":
                            self._refused = str(message.get("reason"))
                            return
                        self._hand_on(message)
                except BlockingIOError:
                    continue
                except (OSError, MessageError) as error:
                    _log.warning("the connection to the agent failed: %s", error)
                    return
                if not data:
                    return

    def _hand_on(self, message: dict[str, Any]) -> None:
        try:
            self._on_message(message)
        except Exception:
            _log.exception("the handler of the agent's message %r failed", message["type"])

    def _say_gone(self) -> None:
        try:
            self._on_gone()
        except Exception:
            _log.exception("the handler of the agent's absence failed")

    def _flush(self) -> None:
        """Send what is kept, as far as the kernel takes it (with the lock held)."""
        while self._pending and self._socket is not None:
            line = self._pending[0]
            sent = _send_now(self._socket, line[self._offset :])
            self._offset += sent
            if self._offset < len(line):
                return
            self._offset = 0
            self._pending_bytes -= len(line)
            self._pending.popleft()

    def _rest(self, seconds: float) -> None:
        if not self._closing:
            poll = select.poll()  # not select(), which knows no descriptor above 1023
            poll.register(self._wake_reader, select.POLLIN)
            poll.poll(seconds * 1000)
            self._drain_wake()

    def _wake(self) -> None:
        with self._lock:
            if self._wake_writer < 0:
                return
            try:
                os.write(self._wake_writer, b"\0")
            except OSError:
                pass  # full, so the thread is waking anyway

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_reader, 4096)
        except OSError:
            pass

    def _forget_after_fork(self) -> None:
        """In a forked child (a data loader's worker, say): the link stays the parent's, the child reports nothing."""
        self._lock = threading.Lock()
        self._closing = True
        self._attached.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for descriptor in (self._wake_writer, self._wake_reader):
            if descriptor >= 0:
                os.close(descriptor)
        self._wake_writer = self._wake_reader = -1
        self._pending.clear()
        self._lifeline.forget_after_fork()


def _send_now(sock: socket.socket, data: bytes) -> int:
    """How many bytes the kernel took: none if its buffer is full or the other side is gone."""
    try:
        return sock.send(data)
    except OSError:
        return 0


def _receive_line(sock: socket.socket) -> bytes:
    """Read one byte at a time up to a line's end: only for the few bytes of a welcome."""
    line = b""
    while not line.endswith(b"\n"):
        byte = sock.recv(1)
        if not byte or len(line) >= MAX_LINE:
            raise MessageError("the agent hung up before its welcome")
        line += byte
    return line


def _forget_links_after_fork() -> None:
    for link in list(_links):
        link._forget_after_fork()


os.register_at_fork(after_in_child=_forget_links_after_fork)

"""Collects what the workers print, line by line.

One thread reads all pipes, so that a worker never blocks on a full pipe while its supervisor is busy, and so that two
workers' lines never mix.  The last lines of standard error are kept: they hold the traceback that says why a worker
died.
"""

from __future__ import annotations

import collections
import logging
import os
import selectors
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_OUTPUT_LINE = 64 * 1024
_CHUNK = 64 * 1024

_log = logging.getLogger(__name__)


def print_with_prefix(worker_id: str, stream: str, line: str) -> None:
    """Forward one line to our own stream of the same name ("stdout" or "stderr"), in one write."""
    target = sys.stderr if stream == "stderr" else sys.stdout
    try:
        target.write(f"[{worker_id}] {line}\n")
        target.flush()
    except (OSError, ValueError):
        pass  # our own reader is gone; the workers' output has nowhere to go, and that must not stop them


@dataclass(eq=False)
class _Stream:
    worker_id: str
    name: str
    descriptor: int
    rest: bytearray = field(default_factory=bytearray)


class OutputPump:
    """Reads the pipes given to `attach` and calls `on_output(worker_id, stream, line)` on a thread of its own."""

    def __init__(self, on_output: Callable[[str, str, str], None] = print_with_prefix, tail_lines: int = 50) -> None:
        self._on_output = on_output
        self._tail_lines = tail_lines
        self._tails: dict[str, collections.deque[str]] = {}
        self._streams: set[_Stream] = set()
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._selector = selectors.DefaultSelector()
        self._closing = False
        self._wake_reader, self._wake_writer = -1, -1
        self._thread = threading.Thread(target=self._pump, name="reknit-output", daemon=True)

    def open(self) -> None:
        """Start the thread."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread.start()

    def attach(self, worker_id: str, stream: str, descriptor: int) -> None:
        """Take over the reading end of a pipe: it is read until its end, or `finish`, and then closed."""
        os.set_blocking(descriptor, False)
        self._post(lambda: self._add(_Stream(worker_id, stream, descriptor)))

    def forget_tail(self, worker_id: str) -> None:
        """Begin a new tail, for a new incarnation."""
        self._tails.pop(worker_id, None)

    def tail(self, worker_id: str) -> list[str]:
        """The last lines that the worker wrote to standard error, oldest first."""
        return list(self._tails.get(worker_id, ()))

    def finish(self, worker_id: str, timeout_seconds: float = 2.0) -> bool:
        """After a worker's death: forward what is left in its pipes and close them; False if that took too long."""
        done = threading.Event()

        def act() -> None:
            for stream in [each for each in self._streams if each.worker_id == worker_id]:
                self._drain(stream)
            done.set()

        self._post(act)
        return done.wait(timeout_seconds)

    def close(self) -> None:
        """Forward what is left in all pipes and end the thread."""
        if self._thread.is_alive():
            self._closing = True
            self._post(lambda: None)
            self._thread.join(timeout=2.0)
            os.close(self._wake_writer)
            self._wake_writer = -1

    def _post(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        if self._wake_writer >= 0:
            os.write(self._wake_writer, b"\0")

    def _pump(self) -> None:
        while not self._closing:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._run_commands()
                elif key.data in self._streams:  # may have ended in this very round
                    self._read(key.data)
        for stream in list(self._streams):
            self._drain(stream)
        self._selector.close()
        os.close(self._wake_reader)

    def _run_commands(self) -> None:
        os.read(self._wake_reader, 4096)
        while self._commands:
            self._commands.popleft()()

    def _add(self, stream: _Stream) -> None:
        self._streams.add(stream)
        self._selector.register(stream.descriptor, selectors.EVENT_READ, stream)

    def _drain(self, stream: _Stream) -> None:
        # Bounded: a process that left the worker's group may hold the pipe and write for ever.
        for _ in range(1 + (1 << 20) // _CHUNK):
            if not self._read(stream):
                break
        if stream in self._streams:
            self._end(stream)

    def _read(self, stream: _Stream) -> bool:
        """Forward one chunk; False if there is none now, or never again."""
        try:
            data = os.read(stream.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._end(stream)
            return False
        stream.rest += data
        *lines, stream.rest = stream.rest.split(b"\n")
        for line in lines:
            self._forward(stream, line)
        if len(stream.rest) >= MAX_OUTPUT_LINE:
            self._forward(stream, stream.rest)
            stream.rest = bytearray()
        return True

    def _end(self, stream: _Stream) -> None:
        if stream.rest:
            self._forward(stream, stream.rest)
        self._selector.unregister(stream.descriptor)
        os.close(stream.descriptor)
        self._streams.discard(stream)

    def _forward(self, stream: _Stream, raw: bytearray) -> None:
        line = raw.decode("utf-8", "replace").rstrip("\r")
        if stream.name == "stderr":
            tail = self._tails.setdefault(stream.worker_id, collections.deque(maxlen=self._tail_lines))
            tail.append(line)
        try:
            self._on_output(stream.worker_id, stream.name, line)
        except Exception:
            _log.exception("the handler of worker %s's output failed", stream.worker_id)

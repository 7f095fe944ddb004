"""The lines that agents and workers exchange: how one is written, and what a reader accepts.

Both sides import this, so it needs neither torch nor etcd.  A reader never trusts a line: its size is bounded, and what
is not a message is a `MessageError`, whatever bytes it is made of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reknit.rendezvous.errors import RecordError, ReknitError
from reknit.rendezvous.keys import check_name

MAX_LINE = 1 << 20  # a data group of some thousand members fits into one message
CHUNK = 64 * 1024  # bytes taken from a socket at once
LIFELINE = "lifeline"
CONTROL = "control"


class IpcError(ReknitError):
    """The agent's socket cannot be opened, or the agent cannot be reached through it."""


class MessageError(ReknitError, ValueError):
    """A line that is too long, is not JSON, or is not a message."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as one line.  Raises MessageError if it has no `type`, is not JSON, or exceeds MAX_LINE bytes."""
    if not isinstance(message.get("type"), str):
        raise MessageError(f"a message needs a 'type' that is a string; got {message.get('type')!r}")
    try:
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise MessageError(f"message {message['type']!r} cannot be written as JSON: {error}") from error
    if len(line) > MAX_LINE:
        raise MessageError(f"message {message['type']!r} takes {len(line)} bytes; a line may have {MAX_LINE}")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """One line, without its end, as a message.  Raises MessageError."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"not JSON: {line[:80]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise MessageError(f"not a message (an object with a 'type' that is a string): {line[:80]!r}")
    return message


class LineReader:
    """Cuts a stream of bytes into messages and holds the piece of a line that is still incomplete."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that `data` completes, one by one.

        Raises MessageError at the first line that is none; the stream is then of no use any more.
        """
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        for line in [*lines, self._rest]:
            if len(line) >= MAX_LINE:
                raise MessageError(f"a line of more than {MAX_LINE} bytes")
            if line is not self._rest:
                yield decode(bytes(line))


@dataclass(frozen=True)
class Greeting:
    """The first line of a connection: which channel it is, and whose."""

    channel: str
    worker_id: str
    incarnation: str
    details: Mapping[str, Any]


def read_greeting(message: Mapping[str, Any]) -> Greeting:
    """Validate a connection's first message.  Raises MessageError."""
    if message.get("type") != "hello":
        raise MessageError(f"the first line must be a 'hello'; got {message.get('type')!r}")
    if message.get("channel") not in (LIFELINE, CONTROL):
        raise MessageError(f"unknown channel {message.get('channel')!r}; it is {LIFELINE!r} or {CONTROL!r}")
    for name in ("worker_id", "incarnation"):
        value = message.get(name)
        try:
            check_name(f"'{name}'", value if isinstance(value, str) else "")
        except RecordError as error:
            raise MessageError(str(error)) from None
    return Greeting(message["channel"], message["worker_id"], message["incarnation"], message)

"""Reads an events file while it is still being written, whole lines only.

The demo, the tests and the measurements all learn what happened from this one source (`reknit.runtime.events` documents
the fields).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

Event: TypeAlias = dict[str, Any]


class Reader:
    """Hands out each event of a growing file once.  The file need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = b""

    def read(self) -> list[Event]:
        """All events whose lines have been completed since the last call; does not wait.

        A line that is no JSON object is skipped: an agent that was killed while it wrote may leave one.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for line in lines if (event := _parse(line)) is not None]


def _parse(line: bytes) -> Event | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("event"), str) else None


def follow(path: Path, ended: Callable[[], bool] = lambda: False, poll_seconds: float = 0.01) -> Iterator[Event]:
    """Yield events as they are written, until `ended()` is true and the file is read to its end."""
    reader = Reader(path)
    while True:
        last = ended()  # asked before reading: what was written before the end is still read
        yield from reader.read()
        if last:
            return
        time.sleep(poll_seconds)

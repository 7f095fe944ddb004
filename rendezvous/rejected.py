"""Values that anybody may have put into the store and that do not fit: logged once each, counted, skipped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from reknit.rendezvous.store.protocol import Entry

REMEMBERED = 1000  # values that are not logged again

_T = TypeVar("_T")


class Rejected:
    """Reads values for its owner and keeps count of those that do not fit.  Thread-safe."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, int], None] = {}
        self.count = 0

    def read(self, entry: Entry, decode: Callable[[bytes, str], _T]) -> _T | None:
        """The decoded value, or None if `decode` finds that it does not fit."""
        try:
            return decode(entry.value, entry.key)
        except (ValueError, TypeError) as error:  # every RecordError is a ValueError
            self.add(entry, str(error))
            return None

    def add(self, entry: Entry, why: str) -> None:
        """Count one value that does not fit; log it unless this very write of it was logged before."""
        mark = (entry.key, entry.mod_revision)
        with self._lock:
            if mark in self._seen:
                return
            self._seen[mark] = None
            if len(self._seen) > REMEMBERED:
                del self._seen[next(iter(self._seen))]
            self.count += 1
        self._logger.warning("skipped what lies at %s: %s", entry.key, why)

"""Adds to the history, afterwards, how long the job stood still for a generation.

On a thread of its own, as it is for people only: neither the agent's loop nor the leader waits for it.  The record is
written only as it was read, so that what it hangs on, and what another leader's agent has added, stays.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.history import decode_record, encode_record
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.background import Background
from reknit.rendezvous.store.protocol import Compare, Lease, Put, Store

logger = logging.getLogger(__name__)

LONGEST = 1e6  # seconds; a record with more would fit no reader
KEPT = 64  # generations; older ones are given up while the store does not answer


class GapWriter(Background):
    """Writes each gap once, if the history has none yet; tries until the store answers."""

    def __init__(self, store: Store, keys: Keys, rejected: Rejected, *, timeout: float, retry: float) -> None:
        super().__init__("session-gaps", timeout)
        self._store, self._keys, self._rejected, self._retry = store, keys, rejected, retry
        self._known: dict[int, float] = {}

    def note(self, generation: int, seconds: float) -> None:
        """The job stood still for so long."""
        with self._condition:
            self._known.setdefault(generation, seconds)
            if len(self._known) > KEPT:
                del self._known[min(self._known)]
            self._condition.notify_all()

    def _run(self) -> None:
        while (known := self._next()) is not None:
            try:
                done = self._write(*known)
            except StoreError as error:
                logger.debug("the gap of generation %d is not written yet: %s", known[0], error)
                done = False
            except Exception:
                logger.exception("the gap of generation %d cannot be written", known[0])
                done = True
            with self._condition:
                if done:
                    self._known.pop(known[0], None)
                elif not self._closed:
                    self._condition.wait(self._retry)

    def _next(self) -> tuple[int, float] | None:
        with self._condition:
            while not self._known and not self._closed:
                self._condition.wait()
            return None if self._closed else max(self._known.items())

    def _write(self, generation: int, seconds: float) -> bool:
        """Whether it is written, or need not be."""
        entry = self._store.get(self._keys.history(generation), timeout=self._timeout)
        record = None if entry is None else self._rejected.read(entry, decode_record)
        if entry is None or record is None or record.gap is not None:
            return True
        value = encode_record(replace(record, gap=round(min(seconds, LONGEST), 6)))
        lease = Lease(entry.lease, 0) if entry.lease else None
        unchanged = Compare.mod_revision(entry.key, entry.mod_revision)
        return self._store.transaction([unchanged], [Put(entry.key, value, lease)], timeout=self._timeout).succeeded

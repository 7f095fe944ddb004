"""Keeps a few lease-bound keys in the store equal to what was declared, without making the declarer wait.

Deletions have a thread of their own, so that the news of a death never queues behind somebody's report.  Writes
coalesce: of one key only the newest value is written.  Of one key never more than one operation is under way, so the
last word declared is the last word written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreUnavailable
from reknit.rendezvous.store.protocol import Lease, Store

logger = logging.getLogger(__name__)


class Mirror:
    """Declared values, mirrored to the store.  Opens nothing before `start`; all methods but `close` return at once.

    `lost` is called with a lease that a write has found to be gone, `unavailable` when the store does not answer.
    """

    def __init__(
        self,
        store: Store,
        lost: Callable[[Lease], None],
        unavailable: Callable[[], None],
        *,
        timeout: float,
        retry: float,
    ) -> None:
        self._store, self._lost, self._unavailable = store, lost, unavailable
        self._timeout, self._retry = timeout, retry
        self._condition = threading.Condition()
        self._wanted: dict[str, bytes] = {}
        self._dirty: dict[str, None] = {}
        self._doomed: dict[str, None] = {}
        self._busy: set[str] = set()
        self._lease: Lease | None = None
        self._closed = False
        self._threads: list[threading.Thread] = []
        self.writes = 0
        self.deletions = 0

    def start(self) -> None:
        """Start mirroring."""
        for name, run in (("mirror-deletes", self._delete_all), ("mirror-writes", self._write_all)):
            self._threads.append(threading.Thread(target=run, name=name, daemon=True))
            self._threads[-1].start()

    def declare(self, key: str, value: bytes) -> None:
        """`key` shall hold `value`."""
        with self._condition:
            if self._wanted.get(key) != value:
                self._wanted[key] = value
                self._dirty[key] = None
                self._condition.notify_all()

    def withdraw(self, key: str) -> None:
        """`key` shall be absent, at once."""
        with self._condition:
            self._wanted.pop(key, None)
            self._dirty.pop(key, None)
            self._doomed[key] = None
            self._condition.notify_all()

    def use(self, lease: Lease | None) -> None:
        """Hang everything on `lease` from now on, and write all anew; None: wait for the next one."""
        with self._condition:
            self._lease = lease
            self._dirty = dict.fromkeys(self._wanted)
            self._condition.notify_all()

    @property
    def settled(self) -> bool:
        """Whether the store holds all that was declared, as far as is known."""
        with self._condition:
            return not self._dirty and not self._doomed

    def stop(self) -> None:
        """Begin to stop, without waiting for it."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def close(self) -> None:
        """Stop; waits for operations under way, at most as long as one may take."""
        self.stop()
        for thread in self._threads:
            thread.join(self._timeout + 1)

    def _write_all(self) -> None:
        while (task := self._next_write()) is not None:
            key, value, lease = task
            done = self._attempt(key, partial(self._write, key, value, lease))
            with self._condition:
                self._busy.discard(key)
                # a lease that was replaced meanwhile took this write away with it
                if done and self._wanted.get(key) is value and self._lease is lease:
                    self._dirty.pop(key, None)
                self._condition.notify_all()
                if not done and not self._closed:
                    self._condition.wait(self._retry)

    def _delete_all(self) -> None:
        while (key := self._next_deletion()) is not None:
            done = self._attempt(key, partial(self._delete, key))
            with self._condition:
                self._busy.discard(key)
                if done:
                    self._doomed.pop(key, None)
                self._condition.notify_all()
                if not done and not self._closed:
                    self._condition.wait(self._retry)

    def _next_write(self) -> tuple[str, bytes, Lease] | None:
        with self._condition:
            while not self._closed:
                if self._lease is not None:
                    for key in self._dirty:
                        if key not in self._busy and key not in self._doomed:
                            self._busy.add(key)
                            return key, self._wanted[key], self._lease
                self._condition.wait()
            return None

    def _next_deletion(self) -> str | None:
        with self._condition:
            while not self._closed:
                for key in self._doomed:
                    if key not in self._busy:
                        self._busy.add(key)
                        return key
                self._condition.wait()
            return None

    def _write(self, key: str, value: bytes, lease: Lease) -> None:
        try:
            self._store.put(key, value, lease=lease, timeout=self._timeout)
            self.writes += 1
        except LeaseLost:
            with self._condition:
                if self._lease is lease:
                    self._lease = None
            self._lost(lease)
            raise

    def _delete(self, key: str) -> None:
        begun = time.monotonic()
        was_there = self._store.delete(key, timeout=self._timeout)
        self.deletions += 1
        logger.debug("deleted %s in %.1f ms%s", key, (time.monotonic() - begun) * 1e3, "" if was_there else " (absent)")

    def _attempt(self, key: str, operation: Callable[[], None]) -> bool:
        try:
            operation()
        except LeaseLost:
            return False
        except StoreUnavailable:
            self._unavailable()
            return False
        except StoreError as error:
            logger.error("cannot write %s, will try again: %s", key, error)
            return False
        except Exception:
            logger.exception("cannot write %s, will try again", key)
            return False
        return True

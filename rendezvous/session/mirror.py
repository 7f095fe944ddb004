"""Keeps a few lease-bound keys in the store equal to what was declared, without making the declarer wait.

The news of a death has a thread of its own, whether it is a deletion or a last record, so that it never queues behind
somebody's report.  Writes coalesce: of one key only the newest value is written.  Of one key never more than one
operation is under way, so the last word declared is the last word written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreUnavailable
from reknit.rendezvous.store.protocol import Lease, Store

logger = logging.getLogger(__name__)

SLOW = 0.5  # seconds; a write that takes longer raises doubt whether the store answers everybody


class Mirror:
    """Declared values, mirrored to the store.  Opens nothing before `start`; all methods but `close` return at once.

    `lost` is called with a lease that a write has found to be gone, `doubt` when the store does not answer, or late.
    `last`: the key that is written under a new lease only when all others are.
    """

    def __init__(
        self,
        store: Store,
        lost: Callable[[Lease], None],
        doubt: Callable[[], None],
        *,
        timeout: float,
        retry: float,
        last: str = "",
    ) -> None:
        self._store, self._lost, self._doubt = store, lost, doubt
        self._timeout, self._retry, self._last = timeout, retry, last
        self._condition = threading.Condition()
        self._wanted: dict[str, bytes] = {}
        self._dirty: dict[str, None] = {}
        self._urgent: dict[str, None] = {}  # those of the dirty ones that bring the news of a death
        self._doomed: dict[str, None] = {}
        self._anew: set[str] = set()  # what the present lease does not hold yet, of what its predecessor held
        self._busy: set[str] = set()
        self._lease: Lease | None = None
        self._refused = False
        self._closed = False
        self._threads: list[threading.Thread] = []
        self.writes = 0
        self.deletions = 0

    def start(self) -> None:
        """Start mirroring."""
        for name, run in (("mirror-deaths", self._run_deaths), ("mirror-writes", self._run_writes)):
            self._threads.append(threading.Thread(target=run, name=name, daemon=True))
            self._threads[-1].start()

    def adopt(self, lease: Lease, values: Mapping[str, bytes]) -> None:
        """Take over `lease` and the values that hang on it: they stand in the store already."""
        with self._condition:
            self._lease = lease
            self._wanted.update(values)

    def declare(self, key: str, value: bytes, *, urgent: bool = False) -> None:
        """`key` shall hold `value`; `urgent`: before what others declared."""
        with self._condition:
            if self._wanted.get(key) != value:
                self._wanted[key] = value
                self._dirty[key] = None
                self._urgent.pop(key, None)
                if urgent:
                    self._urgent[key] = None
                self._condition.notify_all()

    def withdraw(self, key: str) -> None:
        """`key` shall be absent, at once."""
        with self._condition:
            self._wanted.pop(key, None)
            self._dirty.pop(key, None)
            self._urgent.pop(key, None)
            self._anew.discard(key)
            self._doomed[key] = None
            self._condition.notify_all()

    def use(self, lease: Lease | None) -> None:
        """Hang everything on `lease` from now on, and write all anew; None: wait for the next one."""
        with self._condition:
            self._lease = lease
            self._dirty = dict.fromkeys(self._wanted)
            self._anew = set(self._wanted)
            self._condition.notify_all()

    @property
    def settled(self) -> bool:
        """Whether the store holds all that was declared, as far as is known."""
        with self._condition:
            return not self._dirty and not self._doomed

    @property
    def doomed(self) -> list[str]:
        """What was withdrawn and may still be there, in that order: once this is closed, nobody deletes it any more."""
        with self._condition:
            return list(self._doomed)

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

    # ---------------------------------------------------------------- the two threads

    def _run_writes(self) -> None:
        self._run(self._next_write)

    def _run_deaths(self) -> None:
        self._run(lambda: self._next_deletion() or self._next_write(urgent=True))

    def _run(self, choose: Callable[[], tuple[str, Callable[[], None]] | None]) -> None:
        while True:
            with self._condition:
                while not self._closed and (task := choose()) is None:
                    self._condition.wait()
                if self._closed or task is None:
                    return
                key, operation = task
                self._busy.add(key)
            done = self._attempt(key, operation)
            with self._condition:
                self._busy.discard(key)
                self._condition.notify_all()
                if not done and not self._closed:
                    self._condition.wait(self._retry)

    def _next_write(self, urgent: bool = False) -> tuple[str, Callable[[], None]] | None:
        if self._lease is None:
            return None
        for key in self._urgent if urgent else self._dirty:
            if key in self._busy or key in self._doomed or (key == self._last and self._anew - {key}):
                continue
            return key, partial(self._write, key, self._wanted[key], self._lease)
        return None

    def _next_deletion(self) -> tuple[str, Callable[[], None]] | None:
        free = (key for key in self._doomed if key not in self._busy)
        return next(((key, partial(self._delete, key)) for key in free), None)

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
        with self._condition:
            if self._lease is not lease:
                return  # a lease that was replaced meanwhile took this write away with it
            self._refused = False
            self._anew.discard(key)
            if self._wanted.get(key) is value:
                self._dirty.pop(key, None)
                self._urgent.pop(key, None)

    def _delete(self, key: str) -> None:
        begun = time.monotonic()
        was_there = self._store.delete(key, timeout=self._timeout)
        self.deletions += 1
        logger.debug("deleted %s in %.1f ms%s", key, (time.monotonic() - begun) * 1e3, "" if was_there else " (absent)")
        with self._condition:
            self._doomed.pop(key, None)

    def _attempt(self, key: str, operation: Callable[[], None]) -> bool:
        begun = time.monotonic()
        try:
            operation()
        except LeaseLost:
            return False
        except StoreUnavailable:
            self._doubt()
            return False
        except StoreError as error:
            # a full etcd refuses every write, several times a second, until somebody makes room
            logger.log(logging.DEBUG if self._refused else logging.ERROR, "cannot write %s, trying on: %s", key, error)
            self._refused = True
            return False
        except Exception:
            logger.exception("cannot write %s, will try again", key)
            return False
        if time.monotonic() - begun > SLOW:
            self._doubt()
        return True

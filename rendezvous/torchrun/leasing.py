"""Writes that vanish by themselves once nobody repeats them: each hangs on a lease that is left to run out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from reknit.rendezvous.errors import LeaseLost
from reknit.rendezvous.store.protocol import Compare, Lease, Put, Store, TransactionResult


class Leasing:
    """Puts that outlive their writing by at least `seconds` / 2, and at most by what the store grants for `seconds`.

    One lease serves for half its time: so there are few of them, and no thread that would have to renew one.
    """

    def __init__(self, store: Store, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._seconds, self._clock = store, seconds, clock
        self._lease: Lease | None = None
        self._until = 0.0

    def write(self, compares: Sequence[Compare], values: dict[str, bytes], timeout: float) -> TransactionResult:
        """Put `values` if all `compares` hold.  Errors as `Store.transaction`; a lease that is gone is replaced."""
        for again in (True, False):
            lease = self._current(timeout)
            puts = [Put(key, value, lease) for key, value in values.items()]
            try:
                return self._store.transaction(compares, puts, timeout=timeout)
            except LeaseLost:
                self._lease = None
                if not again:
                    raise
        raise AssertionError("unreachable")

    def _current(self, timeout: float) -> Lease:
        now = self._clock()
        if self._lease is None or now >= self._until:
            self._lease = self._store.grant(self._seconds, timeout=timeout)
            self._until = now + self._seconds / 2
        return self._lease

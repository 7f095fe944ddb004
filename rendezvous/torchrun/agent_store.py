"""What torchrun's agents tell each other at the start and at the end of a round: torch's `Store`, on ours.

It replaces the TCPStore of one agent, with which the others would be lost.  Workers never see it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist

from reknit.rendezvous.errors import StoreError, StoreUnavailable
from reknit.rendezvous.store.protocol import Compare, Entry, Store
from reknit.rendezvous.torchrun.leasing import Leasing

T = TypeVar("T")

KEEP_SECONDS = 1800.0  # what was written stays for half of this at least; agents wait 300 s for each other at their end
_FIRST_LOOK, _LONGEST_LOOK = 0.02, 0.25  # seconds between two looks for a key that is not there yet


class AgentStore(dist.Store):
    """A c10d store below `prefix`.  `get` and `wait` wait for keys, as long as the store's `timeout`.

    Raises dist.DistStoreError when a key doesn't come, dist.DistNetworkError when the store is away or refuses.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        self._store, self._prefix, self._clock, self._sleep = store, prefix, clock, sleep
        self._leasing = Leasing(store, KEEP_SECONDS, clock)

    def set(self, key: str, value: bytes | str) -> None:
        """Write `value`."""
        self._try(lambda seconds: self._leasing.write([], {self._key(key): _bytes(value)}, seconds))

    def get(self, key: str) -> bytes:
        """The value of `key`, when it is there."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of `keys`, when all are there."""
        return self._await(keys, self._seconds())

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Write several."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """That there are `multi_get` and `multi_set`."""
        return True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return when all `keys` are there."""
        self._await(keys, self._seconds() if timeout is None else timeout.total_seconds())

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all `keys` are there."""
        return all(self._read(key) is not None for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, that begins at 0; returns the sum."""
        while True:
            entry = self._read(key)
            total = amount + (0 if entry is None else int(entry.value))
            if self._replace(key, entry, str(total).encode()):
                return total

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Write `desired` if the value is `expected` (empty: or there is none); returns what is there then."""
        before, after = _bytes(expected), _bytes(desired)
        while True:
            entry = self._read(key)
            if entry is None and before:
                return before
            if entry is not None and entry.value != before:
                return entry.value
            if self._replace(key, entry, after):
                return after

    def _seconds(self) -> float:
        timeout: timedelta = self.timeout  # type: ignore[attr-defined]
        return timeout.total_seconds()

    def _key(self, key: str) -> str:
        return f"{self._prefix}keys/{key}"

    def _read(self, key: str, seconds: float | None = None) -> Entry | None:
        return self._try(lambda left: self._store.get(self._key(key), timeout=left), seconds)

    def _try(self, act: Callable[[float], T], seconds: float | None = None) -> T:
        """`act` within `seconds`; None: within the store's `timeout`."""
        try:
            return act(max(0.001, self._seconds() if seconds is None else seconds))
        except StoreError as error:
            raise dist.DistNetworkError(str(error)) from error

    def _replace(self, key: str, entry: Entry | None, value: bytes) -> bool:
        """Write `value` if nobody has written since `entry` was read."""
        return self._try(lambda seconds: self._replace_surely(self._key(key), entry, value, seconds))

    def _replace_surely(self, key: str, entry: Entry | None, value: bytes, seconds: float) -> bool:
        # Counted twice, an agent would let the others go before they are there: so each write leaves a receipt, by
        # which it is known again if its answer was lost, or if it was carried out late.
        receipt = f"{self._prefix}receipts/{uuid.uuid4().hex}"
        compare = Compare.mod_revision(key, 0 if entry is None else entry.mod_revision)
        done: bool | None = None
        while done is None:
            done = self._attempt(compare, {key: value, receipt: b""}, receipt, seconds)
        return done

    def _attempt(self, compare: Compare, values: dict[str, bytes], receipt: str, seconds: float) -> bool | None:
        """Write once; None if that has to be tried again."""
        try:
            done = self._leasing.write([compare], values, seconds).succeeded
            return done or self._store.get(receipt, timeout=seconds) is not None
        except StoreUnavailable:
            self._store.get(receipt, timeout=seconds)  # waits until the store answers again, or raises
            return None

    def _await(self, keys: Sequence[str], seconds: float) -> list[bytes]:
        deadline, pause = self._clock() + seconds, _FIRST_LOOK
        found: dict[str, bytes] = {}
        while True:
            for key in keys:
                if key not in found:
                    entry = self._read(key, deadline - self._clock())
                    if entry is None:
                        break
                    found[key] = entry.value
            else:
                return [found[key] for key in keys]
            left = deadline - self._clock()
            if left <= 0:
                missing = ", ".join(key for key in keys if key not in found)
                raise dist.DistStoreError(f"no other agent has written {missing:.300} within {seconds:g} s")
            self._sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_LOOK)


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)

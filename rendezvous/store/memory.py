"""The store in memory: for tests and the simulator, with etcd's semantics and without its process.

Two things differ from a real one, so that a test or a simulation is deterministic:

* **Time moves only when told.**  Leases are judged by an injected clock, at the start of every operation and in
  `tick`; no thread waits for them.
* **Callbacks run synchronously**, in the thread of whoever made the change, before its call returns.  A callback may
  use the store: what it causes is delivered after it has returned, in order.  If another thread is delivering at that
  moment, it delivers ours as well, and our call returns without waiting for that.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreRefused, StoreUnavailable
from reknit.rendezvous.store.memory_watches import MemoryWatch, MemoryWatches
from reknit.rendezvous.store.protocol import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    Entry,
    Event,
    Field,
    Lease,
    OnEvents,
    OnReset,
    Operation,
    Put,
    Snapshot,
    TransactionResult,
)


@dataclass(slots=True)
class _LeaseState:
    ttl: int
    deadline: float
    keys: set[str] = field(default_factory=set)


class MemoryStore:
    """A `Store` in this process, shared by whoever is given the object; safe to use from several threads.

    Args:
        clock: returns the present in seconds; leases run by it.
        minimum_ttl: the seconds that a lease is granted at least (etcd's default settings grant no less than 2).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, minimum_ttl: int = 2) -> None:
        self._clock = clock
        self._minimum_ttl = minimum_ttl
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._leases: dict[int, _LeaseState] = {}
        self._next_lease = 1
        # No lease ends before this: renewals only put it off.
        self._next_expiry = math.inf
        self._revision = 1
        self._cluster_id = 1
        self._watches = MemoryWatches(self._lock, self._snapshot)
        self._closed = False

    @property
    def errors(self) -> Mapping[str, int]:
        """None: it always answers."""
        return {}

    # What only a store in memory can do: for tests and the simulator.

    def tick(self) -> None:
        """Let leases end that have run out by now, and deliver what follows."""
        with self._lock:
            self._expire()
        self._watches.deliver()

    def set_available(self, available: bool) -> None:
        """Begin or end an outage: operations raise StoreUnavailable, watches are silent and catch up afterwards.

        As with an etcd that starts again, no lease ends meanwhile, and all have their full time afterwards.
        """
        with self._lock:
            self._watches.paused = not available
            for state in self._leases.values():
                state.deadline = self._clock() + state.ttl
        self._watches.deliver()

    def wipe(self) -> None:
        """Lose everything, as when etcd starts again on an empty disk: revisions begin anew, all watches start over."""
        with self._lock:
            self._entries.clear()
            self._leases.clear()
            self._revision = 1
            self._cluster_id += 1
            self._watches.start_over()
        self._watches.deliver()

    # The operations of every store.

    def connect(self, *, timeout: float | None = None) -> None:
        """See `Store.connect`."""
        with self._operation():
            pass

    def close(self) -> None:
        """End all watches, see `Store.close`."""
        with self._lock:
            self._closed = True
        self._watches.close()

    def get(self, key: str, *, timeout: float | None = None) -> Entry | None:
        """Return the entry at `key`, or None, see `Store.get`."""
        with self._operation(key):
            return self._entries.get(key)

    def list(self, prefix: str, *, timeout: float | None = None) -> Snapshot:
        """Return all entries under `prefix`, see `Store.list`."""
        with self._operation():
            return self._snapshot(prefix, True)

    def first(self, prefix: str, *, after: str = "", timeout: float | None = None) -> str | None:
        """Return the first key under `prefix` behind `after`, see `Store.first`."""
        with self._operation():
            return min((key for key in self._entries if key.startswith(prefix) and key > after), default=None)

    def put(self, key: str, value: bytes, *, lease: Lease | None = None, timeout: float | None = None) -> int:
        """Write `value` and return its revision, see `Store.put`."""
        return self.transaction([], [Put(key, value, lease)]).revision

    def delete(self, key: str, *, timeout: float | None = None) -> bool:
        """Delete `key` and return whether it was there, see `Store.delete`."""
        with self._operation(key):
            deleted = self._change([Delete(key)])
        return deleted > 0

    def delete_prefix(self, prefix: str, *, timeout: float | None = None) -> int:
        """Delete all keys under `prefix` and return how many, see `Store.delete_prefix`."""
        with self._operation():
            return self._change([Delete(prefix, prefix=True)])

    def transaction(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout: float | None = None
    ) -> TransactionResult:
        """Apply `operations` if all `compares` hold, see `Store.transaction`."""
        with self._operation(*(compare.key for compare in compares), *_single_keys(operations)):
            _check_transaction(compares, operations)
            succeeded = all(self._holds(compare) for compare in compares)
            if succeeded:
                self._change(operations)
            return TransactionResult(succeeded, self._revision)

    def grant(self, ttl: float, *, timeout: float | None = None) -> Lease:
        """Grant a new lease, see `Store.grant`."""
        with self._operation():
            granted = max(math.ceil(ttl), self._minimum_ttl)
            lease = Lease(self._next_lease, granted)
            self._next_lease += 1
            deadline = self._clock() + granted
            self._leases[lease.id] = _LeaseState(granted, deadline)
            self._next_expiry = min(self._next_expiry, deadline)
        return lease

    def keep_alive(self, lease: Lease, *, timeout: float | None = None) -> int:
        """Renew the lease and return its seconds to live, see `Store.keep_alive`."""
        with self._operation():
            state = self._leases.get(lease.id)
            if state is not None:
                state.deadline = self._clock() + state.ttl
        if state is None:
            raise _lost(lease)
        return state.ttl

    def time_to_live(self, lease: Lease, *, timeout: float | None = None) -> int | None:
        """The whole seconds that the lease has yet, or None, see `Store.time_to_live`."""
        with self._operation():
            state = self._leases.get(lease.id)
            return None if state is None else math.floor(state.deadline - self._clock())

    def revoke(self, lease: Lease, *, timeout: float | None = None) -> None:
        """End the lease and delete its keys, see `Store.revoke`."""
        with self._operation():
            self._end_lease(lease.id)

    def watch(self, key: str, on_reset: OnReset, on_events: OnEvents, *, prefix: bool = False) -> MemoryWatch:
        """Follow `key` or what starts with it, see `Store.watch`; the callbacks are synchronous, see the module."""
        with self._lock:
            if self._closed:
                raise StoreError("this store is closed")
            self._expire()
            watch = self._watches.add(key, prefix, on_reset, on_events)
        self._watches.deliver()
        return watch

    @contextmanager
    def _operation(self, *keys: str) -> Iterator[None]:
        """Hold the lock, refuse what cannot be, end the leases that have run out; then tell the watches."""
        try:
            with self._lock:
                self._begin(*keys)
                yield
        finally:
            self._watches.deliver()

    # Under the lock.

    def _begin(self, *keys: str) -> None:
        if self._closed:
            raise StoreError("this store is closed")
        if self._watches.paused:
            raise StoreUnavailable("the store in memory is in an outage: set_available(True) ends it")
        if "" in keys:
            raise StoreRefused("the empty key cannot be read or written")
        self._expire()

    def _expire(self) -> None:
        now = self._clock()
        if now < self._next_expiry or self._watches.paused:
            return
        due = [(state.deadline, number) for number, state in self._leases.items() if state.deadline <= now]
        for _, number in sorted(due):
            self._end_lease(number)
        self._next_expiry = min((state.deadline for state in self._leases.values()), default=math.inf)

    def _end_lease(self, number: int) -> None:
        state = self._leases.pop(number, None)
        if state is not None:
            self._change([Delete(key) for key in sorted(state.keys)])

    def _snapshot(self, key: str, prefix: bool) -> Snapshot:
        keys = sorted(known for known in self._entries if known.startswith(key)) if prefix else [key]
        entries = tuple(self._entries[known] for known in keys if known in self._entries)
        return Snapshot(entries, self._revision, self._cluster_id)

    def _holds(self, compare: Compare) -> bool:
        entry = self._entries.get(compare.key)
        if compare.field is Field.MOD_REVISION:
            return (entry.mod_revision if entry else 0) == compare.expected
        if compare.field is Field.CREATE_REVISION:
            return (entry.create_revision if entry else 0) == compare.expected
        if compare.field is Field.VALUE:
            return entry is not None and entry.value == compare.expected
        return entry is None

    def _change(self, operations: Sequence[Operation]) -> int:
        """Apply `operations` at one new revision (none if nothing changes); return how many keys were deleted."""
        for operation in operations:
            if isinstance(operation, Put) and operation.lease and operation.lease.id not in self._leases:
                raise _lost(operation.lease)
        revision = self._revision + 1
        events: list[Event] = []
        for operation in operations:
            if isinstance(operation, Put):
                events.append(self._put(operation, revision))
            else:
                events.extend(self._remove(operation, revision))
        if events:
            self._revision = revision
            self._watches.announce(events)
        return sum(event.entry is None for event in events)

    def _put(self, put: Put, revision: int) -> Event:
        old = self._entries.get(put.key)
        if old is not None and old.lease in self._leases:
            self._leases[old.lease].keys.discard(put.key)
        lease = put.lease.id if put.lease else 0
        if lease:
            self._leases[lease].keys.add(put.key)
        entry = Entry(put.key, put.value, revision, old.create_revision if old else revision, lease)
        self._entries[put.key] = entry
        return Event(put.key, entry, revision)

    def _remove(self, delete: Delete, revision: int) -> Sequence[Event]:
        if delete.prefix:
            keys = sorted(key for key in self._entries if key.startswith(delete.key))
        else:
            keys = [delete.key] if delete.key in self._entries else []
        for key in keys:
            lease = self._entries.pop(key).lease
            if lease in self._leases:
                self._leases[lease].keys.discard(key)
        return [Event(key, None, revision) for key in keys]


def _lost(lease: Lease) -> LeaseLost:
    return LeaseLost(f"lease {lease.id:x} is gone: it ran out or was revoked, and its keys are deleted")


def _single_keys(operations: Sequence[Operation]) -> Iterator[str]:
    """Yield the keys that are named in full."""
    return (operation.key for operation in operations if isinstance(operation, Put) or not operation.prefix)


def _check_transaction(compares: Sequence[Compare], operations: Sequence[Operation]) -> None:
    """Refuse what etcd refuses: too much, or a key that two operations would write."""
    if max(len(compares), len(operations)) > MAX_OPERATIONS:
        raise StoreRefused(f"a transaction takes at most {MAX_OPERATIONS} operations: split it")
    puts = [operation.key for operation in operations if isinstance(operation, Put)]
    deletes = [operation for operation in operations if isinstance(operation, Delete)]
    for key in puts:
        deleted = any(key == delete.key or (delete.prefix and key.startswith(delete.key)) for delete in deletes)
        if deleted or puts.count(key) > 1:
            raise StoreRefused(f"a transaction writes {key!r} twice")

"""The store as everybody else sees it: one protocol and its data types, free of etcd and grpc.

It is apart from its two implementations (`etcd.EtcdStore`, `memory.MemoryStore`) so that pure code, tests and the
simulator can speak of entries and transactions without importing grpc.  Keys are `str`, values are `bytes`, all times
are seconds.

What every implementation promises:

* Every operation ends within its timeout: with a result, or with an error from `reknit.rendezvous.errors`.
  `StoreUnavailable` means that nothing is known: a write that raised it may have been applied.
* Operations that may be repeated without harm (reads, unconditional writes, leases) are retried within the timeout;
  watchers may therefore see the same put twice, with two revisions.  A `transaction` is never retried: after
  `StoreUnavailable` read back what it would have written before trying again.
* A watch delivers its events in the order of their revisions, each exactly once, across outages; when that cannot be
  kept (compaction, a store that was wiped or restored) it starts over with a fresh snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

MAX_OPERATIONS = 128
"""The most operations (and the most compares) that one transaction takes; splitting larger work is the caller's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key as it stands in the store.

    `mod_revision` is the revision of its last write, `create_revision` that of its first write since it was last
    absent; `lease` is the id of the lease that it hangs on, 0 for none.
    """

    key: str
    value: bytes
    mod_revision: int
    create_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries of a prefix (or the one of an exact key) at `revision`, sorted by key."""

    entries: tuple[Entry, ...]
    revision: int
    cluster_id: int


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one key, made at `revision`: a write of `entry`, or a deletion if that is None."""

    key: str
    entry: Entry | None
    revision: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease: its id, and the seconds to live that the store granted (perhaps more than was asked)."""

    id: int
    ttl: int


class Field(Enum):
    """What of a key a `Compare` looks at."""

    MOD_REVISION = "mod_revision"
    CREATE_REVISION = "create_revision"
    VALUE = "value"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Compare:
    """A condition of a transaction: `field` of `key` equals `expected`.  Made by the class methods below."""

    key: str
    field: Field
    expected: int | bytes

    @classmethod
    def mod_revision(cls, key: str, revision: int) -> Compare:
        """`key` was last written at `revision` (0: it is absent)."""
        return cls(key, Field.MOD_REVISION, revision)

    @classmethod
    def create_revision(cls, key: str, revision: int) -> Compare:
        """`key` has stood since `revision` (0: it is absent)."""
        return cls(key, Field.CREATE_REVISION, revision)

    @classmethod
    def value(cls, key: str, value: bytes) -> Compare:
        """`key` is present and holds `value`."""
        return cls(key, Field.VALUE, value)

    @classmethod
    def absent(cls, key: str) -> Compare:
        """`key` is not in the store."""
        return cls(key, Field.VERSION, 0)


@dataclass(frozen=True, slots=True)
class Put:
    """Write `value` to `key`; without a lease the key is taken off the one that it may hang on."""

    key: str
    value: bytes
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete `key`, or every key that starts with it if `prefix`."""

    key: str
    prefix: bool = False


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Whether all compares held, so that the operations were applied, and the store's revision after that."""

    succeeded: bool
    revision: int


OnReset = Callable[[Snapshot], None]
OnEvents = Callable[[Sequence[Event]], None]


class WatchHandle(Protocol):
    """A running watch."""

    def close(self) -> None:
        """End the watch.  No callback starts after this returns; may be called from a callback, and twice."""


class Store(Protocol):
    """The operations of a store; the promises are in the module's docstring.

    Every `timeout` is in seconds and covers the whole operation with its retries; None means the store's own default.
    Every operation raises StoreUnavailable when the store does not answer in time and StoreRefused when it says no
    (authentication, permission, a request that it does not accept).
    """

    @property
    def errors(self) -> Mapping[str, int]:
        """How many tries have failed since the start, by operation: read, write, transaction, lease, watch.

        What was tried again with success counts too; an answer such as "this lease is gone" does not.
        """

    def connect(self, *, timeout: float | None = None) -> None:
        """Reach the store once, so that a wrong address, certificate or password is reported here."""

    def close(self) -> None:
        """End all watches and connections.  Leases are left to run out; revoke first what should end now."""

    def get(self, key: str, *, timeout: float | None = None) -> Entry | None:
        """Return the entry at `key`, or None if it is absent."""

    def list(self, prefix: str, *, timeout: float | None = None) -> Snapshot:
        """Return all entries whose key starts with `prefix` ("" for all), and the revision at which that was so."""

    def first(self, prefix: str, *, after: str = "", timeout: float | None = None) -> str | None:
        """Return the first key that starts with `prefix` and is greater than `after`, by its bytes; None without one.

        So it can be seen what there is under a prefix without reading all of it.
        """

    def put(self, key: str, value: bytes, *, lease: Lease | None = None, timeout: float | None = None) -> int:
        """Write `value`, hang it on `lease` (None: on no lease), and return the new revision.

        Raises LeaseLost if the lease is gone; then nothing was written.
        """

    def delete(self, key: str, *, timeout: float | None = None) -> bool:
        """Delete `key`; return whether it was there (after a retry it may be our own first try that deleted it)."""

    def delete_prefix(self, prefix: str, *, timeout: float | None = None) -> int:
        """Delete all keys that start with `prefix` at one revision; return how many there were."""

    def transaction(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout: float | None = None
    ) -> TransactionResult:
        """Apply all `operations` at one revision if all `compares` hold, else nothing.  Never retried.

        At most MAX_OPERATIONS of each, and no key written twice (StoreRefused).  Raises LeaseLost, with nothing
        written, if the lease of a put is gone.  After StoreUnavailable it may have been applied: read back before
        trying again.
        """

    def grant(self, ttl: float, *, timeout: float | None = None) -> Lease:
        """Grant a new lease of at least `ttl` seconds (rounded up to whole ones; the store may grant more)."""

    def keep_alive(self, lease: Lease, *, timeout: float | None = None) -> int:
        """Renew the lease and return its time to live in seconds.  Raises LeaseLost if it is gone."""

    def time_to_live(self, lease: Lease, *, timeout: float | None = None) -> int | None:
        """How long the lease has yet if nobody renews it, in whole seconds rounded down; None if it is gone."""

    def revoke(self, lease: Lease, *, timeout: float | None = None) -> None:
        """End the lease now and delete its keys at one revision.  A lease that is gone already is no error."""

    def watch(self, key: str, on_reset: OnReset, on_events: OnEvents, *, prefix: bool = False) -> WatchHandle:
        """Follow `key`, or all keys that start with it if `prefix`; does not wait for the store.

        First `on_reset` gets the state (perhaps before this returns), then `on_events` gets what happens after it, a
        batch never empty and never ending inside a revision.  After an outage the events go on where they stopped;
        `on_reset` comes again when events were compacted away, when the store's revision went back or another cluster
        answers, and after a callback raised (which is logged).  Callbacks of one watch never overlap; they should
        return soon, as the watch waits for them.
        """

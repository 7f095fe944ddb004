"""A leader's hand on the store: what it writes holds only while the leader key stands since this leader's election.

A lease cannot be revoked within a transaction; whoever revokes one checks the fence immediately before.
"""

from __future__ import annotations

from collections.abc import Sequence

from reknit.rendezvous.errors import Deposed
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.store.protocol import Compare, Entry, Lease, Operation, Snapshot, Store, TransactionResult


class Fence:
    """The store under one leader's fence.  Every method raises StoreUnavailable if the store does not answer."""

    def __init__(self, store: Store, keys: Keys, revision: int, timeout: float) -> None:
        self._store, self.keys, self.revision, self._timeout = store, keys, revision, timeout

    def write(self, operations: Sequence[Operation], *unchanged: Compare) -> int:
        """Apply the operations, all or none, and return the store's revision; `Deposed` if nothing was written."""
        result = self._transact(operations, unchanged)
        if not result.succeeded:
            raise Deposed("the leader key, or what this leader went by, has changed in between; nothing was written")
        return result.revision

    def try_write(self, operations: Sequence[Operation], *unchanged: Compare) -> bool:
        """The same; False if nothing was written.  Without operations: whether all of it is still so."""
        return self._transact(operations, unchanged).succeeded

    def get(self, key: str) -> Entry | None:
        """The entry at `key`."""
        return self._store.get(key, timeout=self._timeout)

    def list(self, prefix: str) -> Snapshot:
        """All entries under `prefix`."""
        return self._store.list(prefix, timeout=self._timeout)

    def delete_prefix(self, prefix: str) -> None:
        """Delete, without a fence, what nobody needs any more."""
        self._store.delete_prefix(prefix, timeout=self._timeout)

    def grant(self, seconds: float) -> Lease:
        """A lease that nobody renews: what hangs on it is gone then."""
        return self._store.grant(seconds, timeout=self._timeout)

    def revoke(self, lease: int) -> None:
        """End somebody's lease, by its number: all records that hang on it are gone."""
        self._store.revoke(Lease(lease, 0), timeout=self._timeout)

    def _transact(self, operations: Sequence[Operation], unchanged: Sequence[Compare]) -> TransactionResult:
        mine = Compare.create_revision(self.keys.leader, self.revision)
        return self._store.transaction([mine, *unchanged], operations, timeout=self._timeout)

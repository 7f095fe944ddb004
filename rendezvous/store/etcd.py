"""The store on a real etcd, with etcd3 0.12.0 as its client.

etcd3 gives the channel, TLS, the messages and the stubs; its watcher, locks and lease refreshing are not used, since
a watch of it dies with its connection, and its calls hang on a frozen server.  Here no call lacks a deadline, and no
watch dies.

**grpc and fork do not mix.**  A child forked from a process that has used grpc hangs in it, and can corrupt the
streams of its parent.  So a process that imports this module starts others by exec only (`subprocess`, never
`os.fork` or the fork method of `multiprocessing`); a store that finds itself in a forked child refuses to work.

Together with its helpers `etcd_calls`, `etcd_connection`, `etcd_watch` and `etcd_messages` this is the only importer of
etcd3, grpc and protobuf.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from reknit.rendezvous.errors import LeaseLost, StoreError
from reknit.rendezvous.store.endpoints import TlsFiles, parse_endpoints
from reknit.rendezvous.store.etcd_calls import EtcdCalls, PermissionDenied
from reknit.rendezvous.store.etcd_connection import Connection
from reknit.rendezvous.store.etcd_messages import rpc
from reknit.rendezvous.store.etcd_watch import EtcdWatch, decode, encode, key_range, to_entry, to_snapshot
from reknit.rendezvous.store.protocol import (
    Compare,
    Entry,
    Field,
    Lease,
    OnEvents,
    OnReset,
    Operation,
    Put,
    Snapshot,
    TransactionResult,
)

DEFAULT_TIMEOUT = 5.0

_FIELDS = {
    Field.MOD_REVISION: (rpc.Compare.MOD, "mod_revision"),
    Field.CREATE_REVISION: (rpc.Compare.CREATE, "create_revision"),
    Field.VALUE: (rpc.Compare.VALUE, "value"),
    Field.VERSION: (rpc.Compare.VERSION, "version"),
}


class EtcdStore:
    """A `Store` on etcd; safe to use from several threads.

    The constructor checks the addresses and files but opens no connection: `connect` or the first operation does.

    Args:
        endpoints: "host:port" of one or several members, separated by commas or in a sequence; names, IPv4, [IPv6].
        tls: the CA and perhaps our own certificate; None speaks plaintext.
        user, password: for an etcd with authentication on, over TLS or not; logins that run out are renewed.
        timeout: seconds that an operation may take, with its retries, where none is given.

    Raises:
        StoreError: an address that cannot be one, an unreadable TLS file, a user without password or the reverse.
    """

    def __init__(
        self,
        endpoints: str | Sequence[str],
        *,
        tls: TlsFiles | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        if (user is None) != (password is None):
            raise StoreError("a user and a password for etcd go together: give both or neither")
        self.endpoints = parse_endpoints(endpoints, tls is not None)
        self._calls = EtcdCalls(self.endpoints, tls, user, password, timeout)
        self._calls.on_silence, self._calls.on_answer = self._move_watches, self._hurry_watches
        self._lock = threading.Lock()
        self._watches: set[EtcdWatch] = set()

    @property
    def errors(self) -> Mapping[str, int]:
        """How many tries have failed, see `Store.errors`."""
        return dict(self._calls.errors)

    def connect(self, *, timeout: float | None = None) -> None:
        """Reach a quorum once and log in, see `Store.connect`."""
        try:
            self._look(b"\0", "a first look", timeout)
        except PermissionDenied:
            # It knows us, and has let us in.  Which keys are ours to read is not known here.
            pass

    def close(self) -> None:
        """End all watches and connections, see `Store.close`."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.close()
        self._calls.close()

    def get(self, key: str, *, timeout: float | None = None) -> Entry | None:
        """Return the entry at `key`, or None, see `Store.get`."""
        answer = self._range(key_range(key, prefix=False), f"a get of {key}", timeout)
        return to_entry(answer.kvs[0]) if answer.kvs else None

    def list(self, prefix: str, *, timeout: float | None = None) -> Snapshot:
        """Return all entries under `prefix`, see `Store.list`."""
        return to_snapshot(self._range(key_range(prefix, prefix=True), f"a list of {prefix}*", timeout))

    def first(self, prefix: str, *, after: str = "", timeout: float | None = None) -> str | None:
        """Return the first key under `prefix` behind `after`, see `Store.first`."""
        keys = key_range(prefix, prefix=True)
        keys["key"] = max(keys["key"], encode(after) + b"\0")
        request = rpc.RangeRequest(**keys, limit=1, keys_only=True)
        answer = self._calls.call(lambda c: c.kv.Range, request, f"the first key of {prefix}*", timeout)
        return decode(answer.kvs[0].key) if answer.kvs else None

    def put(self, key: str, value: bytes, *, lease: Lease | None = None, timeout: float | None = None) -> int:
        """Write `value` and return its revision, see `Store.put`."""
        request = _put_request(Put(key, value, lease))
        answer = self._calls.call(lambda c: c.kv.Put, request, f"a put to {key}", timeout)
        return int(answer.header.revision)

    def delete(self, key: str, *, timeout: float | None = None) -> bool:
        """Delete `key` and return whether it was there, see `Store.delete`."""
        return self._delete(key, False, timeout) > 0

    def delete_prefix(self, prefix: str, *, timeout: float | None = None) -> int:
        """Delete all keys under `prefix` and return how many, see `Store.delete_prefix`."""
        return self._delete(prefix, True, timeout)

    def transaction(
        self, compares: Sequence[Compare], operations: Sequence[Operation], *, timeout: float | None = None
    ) -> TransactionResult:
        """Apply `operations` if all `compares` hold, see `Store.transaction`."""
        budget = self._calls.timeout if timeout is None else timeout
        request = rpc.TxnRequest(
            compare=[_compare_request(compare) for compare in compares],
            success=[_operation_request(operation) for operation in operations],
        )
        keys = [compare.key for compare in compares] + [operation.key for operation in operations]
        what = f"a transaction on {keys[0] if keys else 'nothing'}"
        deadline = time.monotonic() + budget
        if self._calls.doubtful and keys:
            # It is sent only once: so first find, with a call that may be repeated, an endpoint that answers.
            self._look(encode(keys[0]), what, budget)
        left = max(0.001, deadline - time.monotonic())
        answer = self._calls.call_once(lambda c: c.kv.Txn, request, what, left)
        return TransactionResult(answer.succeeded, answer.header.revision)

    def grant(self, ttl: float, *, timeout: float | None = None) -> Lease:
        """Grant a new lease, see `Store.grant`.  A lost answer may leave a second one, which runs out by itself."""
        request = rpc.LeaseGrantRequest(TTL=math.ceil(ttl))
        answer = self._calls.call(lambda c: c.lease.LeaseGrant, request, f"the grant of a lease of {ttl:g} s", timeout)
        return Lease(answer.ID, answer.TTL)

    def keep_alive(self, lease: Lease, *, timeout: float | None = None) -> int:
        """Renew the lease and return its seconds to live, see `Store.keep_alive`."""
        request = rpc.LeaseKeepAliveRequest(ID=lease.id)
        answer = self._calls.call(lambda c: c.keep_alive, request, f"the renewal of lease {lease.id:x}", timeout)
        # etcd reports a lease that is gone as one with no time left, not as an error.
        if answer.TTL <= 0:
            raise LeaseLost(
                f"lease {lease.id:x} is gone from etcd: it ran out or was revoked, and its keys are deleted"
            )
        return int(answer.TTL)

    def time_to_live(self, lease: Lease, *, timeout: float | None = None) -> int | None:
        """Return the whole seconds that the lease has yet, or None, see `Store.time_to_live`."""
        request = rpc.LeaseTimeToLiveRequest(ID=lease.id)
        doing = f"a question about lease {lease.id:x}"
        try:
            answer = self._calls.call(lambda c: c.lease.LeaseTimeToLive, request, doing, timeout)
        except LeaseLost:
            return None
        return None if answer.TTL < 0 else int(answer.TTL)  # etcd reports one that is gone as -1

    def revoke(self, lease: Lease, *, timeout: float | None = None) -> None:
        """End the lease and delete its keys, see `Store.revoke`."""
        request = rpc.LeaseRevokeRequest(ID=lease.id)
        try:
            self._calls.call(lambda c: c.lease.LeaseRevoke, request, f"the revocation of lease {lease.id:x}", timeout)
        except LeaseLost:
            pass

    def watch(self, key: str, on_reset: OnReset, on_events: OnEvents, *, prefix: bool = False) -> EtcdWatch:
        """Follow `key` or what starts with it, see `Store.watch`; the callbacks run on a daemon thread of the watch."""
        # Not to be started only to fail for ever: a closed store, or a forked child.
        self._calls.current()
        with self._lock:
            watch = EtcdWatch(self._calls, key, prefix, on_reset, on_events, self._forget_watch)
            self._watches.add(watch)
        return watch

    def _range(self, keys: dict[str, bytes], what: str, timeout: float | None) -> Any:
        return self._calls.call(lambda c: c.kv.Range, rpc.RangeRequest(**keys), what, timeout)

    def _look(self, key: bytes, what: str, timeout: float | None) -> None:
        request = rpc.RangeRequest(key=key, count_only=True)
        self._calls.call(lambda c: c.kv.Range, request, what, timeout)

    def _delete(self, key: str, prefix: bool, timeout: float | None) -> int:
        request = rpc.DeleteRangeRequest(**key_range(key, prefix))
        answer = self._calls.call(lambda c: c.kv.DeleteRange, request, f"the deletion of {key}", timeout)
        return int(answer.deleted)

    def _forget_watch(self, watch: EtcdWatch) -> None:
        with self._lock:
            self._watches.discard(watch)

    def _move_watches(self, silent: Connection) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.leave(silent)

    def _hurry_watches(self) -> None:
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            watch.hurry()


def _put_request(put: Put) -> Any:
    return rpc.PutRequest(key=encode(put.key), value=put.value, lease=put.lease.id if put.lease else 0)


def _operation_request(operation: Operation) -> Any:
    if isinstance(operation, Put):
        return rpc.RequestOp(request_put=_put_request(operation))
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(**key_range(operation.key, operation.prefix)))


def _compare_request(compare: Compare) -> Any:
    target, field = _FIELDS[compare.field]
    expected = {field: compare.expected}
    return rpc.Compare(key=encode(compare.key), target=target, result=rpc.Compare.EQUAL, **expected)

"""The thread behind one watch on etcd: list at revision R, then follow the changes from R + 1, whatever happens.

etcd3's own watcher dies with its connection, so the stream is opened here.  The thread ends only by `close`: every
failure is logged (once per outage), backed off from, and resumed from.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reknit.rendezvous.errors import StoreRefused
from reknit.rendezvous.store.etcd_calls import EtcdCalls
from reknit.rendezvous.store.etcd_connection import Connection
from reknit.rendezvous.store.etcd_messages import grpc, kv, rpc
from reknit.rendezvous.store.protocol import Entry, Event, OnEvents, OnReset, Snapshot

_log = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.05, 1.0
_CLOSE_WAIT = 2.0


def range_end(prefix: bytes) -> bytes:
    """Return the first key after all keys that start with `prefix`, which for an empty one is etcd's sign for "all"."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1]) if trimmed else b"\0"


def key_range(key: str, prefix: bool) -> dict[str, bytes]:
    """Return `key` and `range_end` as etcd's requests want them."""
    raw = encode(key)
    return {"key": raw or b"\0", "range_end": range_end(raw)} if prefix else {"key": raw}


def encode(key: str) -> bytes:
    """Return a key's bytes; the reverse of `decode` for any bytes that others may have put there."""
    return key.encode("utf-8", "surrogateescape")


def decode(key: bytes) -> str:
    """Return a key's text; never fails."""
    return key.decode("utf-8", "surrogateescape")


def to_entry(message: Any) -> Entry:
    """Return our form of etcd's KeyValue."""
    return Entry(decode(message.key), message.value, message.mod_revision, message.create_revision, message.lease)


def to_snapshot(answer: Any) -> Snapshot:
    """Return our form of etcd's RangeResponse (which is sorted by key)."""
    return Snapshot(tuple(to_entry(item) for item in answer.kvs), answer.header.revision, answer.header.cluster_id)


def _to_event(message: Any) -> Event:
    deleted = message.type == kv.Event.DELETE
    return Event(decode(message.kv.key), None if deleted else to_entry(message.kv), message.kv.mod_revision)


@dataclass(frozen=True, slots=True)
class _Position:
    """How far the callbacks have been told, and in which history."""

    revision: int
    cluster_id: int
    raft_term: int

    def is_foreign_to(self, header: Any) -> bool:
        """Whether whoever sent `header` cannot (yet) have the history that we have seen.

        The term matters for a wiped etcd that has been written to so much that its revision looks plausible again.
        """
        return bool(
            header.revision < self.revision or header.cluster_id != self.cluster_id or header.raft_term < self.raft_term
        )


class _ClosedError(Exception):
    """The watch was closed while it was busy."""


class _CallbackError(Exception):
    """A callback raised: what it was told may be half applied."""


class EtcdWatch:
    """A running watch; see `Store.watch` for what the callbacks get.  Starts its thread at once."""

    def __init__(
        self,
        calls: EtcdCalls,
        key: str,
        prefix: bool,
        on_reset: OnReset,
        on_events: OnEvents,
        on_close: Callable[[EtcdWatch], None],
    ) -> None:
        self._calls = calls
        self._name = f"{key}*" if prefix else key
        self._range = key_range(key, prefix)
        self._on_reset, self._on_events, self._on_close = on_reset, on_events, on_close
        self._position: _Position | None = None
        self._stopped = threading.Event()
        self._hurried = threading.Event()  # whether to try again without further delay
        self._lock = threading.Lock()
        self._call: Any = None
        self._connection: Connection | None = None
        self._trouble_since: float | None = None
        self._delay = _FIRST_DELAY
        self._refused_token = False
        self._thread = threading.Thread(target=self._run, name=f"reknit-watch {self._name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch, see `WatchHandle.close`."""
        with self._lock:
            self._stopped.set()
            self._hurried.set()
            call = self._call
        if call is not None:
            call.cancel()
        self._on_close(self)
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_WAIT)

    def leave(self, connection: Connection) -> None:
        """Move the stream elsewhere if it is on `connection`, whose other end has gone silent."""
        with self._lock:
            call = self._call if self._connection is connection else None
        if call is not None:
            call.cancel()

    def hurry(self) -> None:
        """Try again now, if the watch waits to do so: etcd has answered somebody."""
        self._hurried.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._run_until_interrupted()

    def _run_until_interrupted(self) -> None:
        try:
            if self._position is None:
                self._list()
            self._follow()
        except Exception as error:
            if self._stopped.is_set():
                return
            if isinstance(error, _CallbackError):
                self._position = None
            elif isinstance(error, grpc.RpcError) and self._connection is not None:
                self._calls.leave(self._connection)
            self._report(error)
            self._hurried.wait(self._delay * random.uniform(0.5, 1.0))
            self._hurried.clear()
            self._delay = min(2 * self._delay, _LONGEST_DELAY)

    def _report(self, error: Exception) -> None:
        if isinstance(error, _CallbackError):
            _log.error("a callback of the watch on %s raised; it is told anew", self._name, exc_info=error.__cause__)
            return
        self._calls.errors["watch"] += 1
        reason = error.details() or error.code().name if isinstance(error, grpc.RpcError) else error
        if self._trouble_since is None:
            self._trouble_since = time.monotonic()
            _log.warning("the watch on %s is interrupted, and goes on as soon as it can: %s", self._name, reason)
        else:
            _log.debug("the watch on %s is still interrupted: %s", self._name, reason)

    def _track(self, call: Any, connection: Connection | None = None) -> None:
        """Remember the call in flight for `close` to cancel."""
        with self._lock:
            self._call, self._connection = call, connection
            if not self._stopped.is_set():
                return
        call.cancel()
        raise _ClosedError

    def _tell(self, callback: Callable[[Any], None], what: Any) -> None:
        if self._stopped.is_set():
            raise _ClosedError
        try:
            callback(what)
        except Exception as error:
            raise _CallbackError from error

    def _list(self) -> None:
        request = rpc.RangeRequest(**self._range)
        doing = f"a list of {self._name}"
        answer = self._calls.call_once(lambda c: c.kv.Range, request, doing, None, self._track)
        self._tell(self._on_reset, to_snapshot(answer))
        header = answer.header
        self._position = _Position(header.revision, header.cluster_id, header.raft_term)

    def _follow(self) -> None:
        """Deliver events until the stream ends; `_position` is None afterwards if a new list is needed."""
        position = self._position
        assert position is not None
        connection = self._calls.current()
        # The deadline is the login's.  The stream has none: its connection's pings end it when etcd falls silent.
        token = self._calls.metadata(connection, time.monotonic() + self._calls.timeout)
        create = rpc.WatchCreateRequest(start_revision=position.revision + 1, **self._range)
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(rpc.WatchRequest(create_request=create))
        # hasleader: a member cut off from its cluster must end the stream instead of staying silent.
        call = connection.watch(iter(requests.get, None), metadata=(*token, ("hasleader", "true")))
        try:
            self._track(call, connection)
            for answer in call:
                if not self._digest(answer, token):
                    return
            raise ConnectionError("etcd ended the stream")
        finally:
            requests.put(None)
            call.cancel()

    def _digest(self, answer: Any, token: Any) -> bool:
        """Act on one answer of the stream; return whether to read on.  Raises if the watch was refused."""
        position = self._position
        assert position is not None
        if answer.compact_revision:
            _log.info("the watch on %s fell behind a compaction: listing anew", self._name)
            self._position = None
            return False
        if answer.canceled or answer.watch_id < 0:
            return self._refused(answer, token)
        if answer.created:
            return self._begun(answer, position)
        # The header's revision runs ahead of the events while a watch catches up: only the events count.
        events = tuple(_to_event(event) for event in answer.events if event.kv.mod_revision > position.revision)
        if events:
            self._tell(self._on_events, events)
            self._position = _Position(events[-1].revision, position.cluster_id, position.raft_term)
        return True

    def _begun(self, answer: Any, position: _Position) -> bool:
        if position.is_foreign_to(answer.header):
            # A member that lags behind its cluster is no reason to start over: ask the cluster.
            request = rpc.RangeRequest(count_only=True, **self._range)
            current = self._calls.call_once(lambda c: c.kv.Range, request, "a look at its revision", None).header
            if position.is_foreign_to(current):
                _log.warning(
                    "etcd went back to revision %d, or is another: listing %s anew", current.revision, self._name
                )
                self._position = None
                return False
        if self._trouble_since is not None:
            _log.info("the watch on %s goes on after %.1f s", self._name, time.monotonic() - self._trouble_since)
        self._trouble_since, self._delay, self._refused_token = None, _FIRST_DELAY, False
        return True

    def _refused(self, answer: Any, token: Any) -> bool:
        """A watch with an expired token is refused like one without permission: so try once with a new token."""
        self._calls.forget_token(token)
        if token and not self._refused_token:
            self._refused_token = True
            return False
        reason = answer.cancel_reason or "permission denied, or the login has run out"
        raise StoreRefused(f"etcd refused the watch on {self._name}: {reason}.  Grant this user's role read on it.")

"""Fetches of a plan what one worker needs: its data group's part, and by that its replica's.

On a thread of its own, so that neither the agent's loop nor the lease waits for it.  Parts are immutable, so what one
worker of this agent has fetched serves the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from reknit.rendezvous.codec import decode_replica, loads
from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import Head, View, decode_peers, parts_prefix
from reknit.rendezvous.records import Name, Replica
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.background import Background
from reknit.rendezvous.session.events import ViewFetched
from reknit.rendezvous.store.protocol import Entry, Store

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class ViewFetcher(Background):
    """Answers requests by `ViewFetched`; tries each until it succeeds or a newer one takes its place."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        emit: Callable[[ViewFetched], None],
        rejected: Rejected,
        *,
        timeout: float,
        retry: float,
    ) -> None:
        super().__init__("session-views", timeout)
        self._store, self._keys, self._emit, self._rejected = store, keys, emit, rejected
        self._retry = retry
        self._requests: dict[Name, tuple[Head, int | None]] = {}
        self._entries: dict[str, Entry] = {}
        self._newest = 0

    def request(self, head: Head, name: Name, coordinate: int | None) -> None:
        """Ask for the view of `name`, which is at `coordinate` (None: without one it can have no place)."""
        with self._condition:
            self._requests[name] = (head, coordinate)
            self._condition.notify_all()

    def newest(self, generation: int) -> None:
        """Tell of the newest generation: a request for an older one whose parts are gone is given up."""
        with self._condition:
            self._newest = max(self._newest, generation)
            self._condition.notify_all()

    def _run(self) -> None:
        while (request := self._next()) is not None:
            name, head, coordinate = request
            try:
                view = self._fetch(head, name, coordinate)
            except StoreError as error:
                logger.warning("the view of %s of generation %d is delayed: %s", name, head.generation, error)
                view = None
            except Exception:
                logger.exception("the view of %s of generation %d cannot be fetched", name, head.generation)
                view = None
            if view is not None:
                self._emit(ViewFetched(name, view))
            else:
                self._again(head, name, coordinate)

    def _next(self) -> tuple[Name, Head, int | None] | None:
        with self._condition:
            while not self._requests and not self._closed:
                self._condition.wait()
            if self._closed:
                return None
            name = next(iter(self._requests))
            return (name, *self._requests.pop(name))

    def _again(self, head: Head, name: Name, coordinate: int | None) -> None:
        with self._condition:
            if name in self._requests:
                return
            if head.generation < self._newest:
                logger.debug("generation %d is over: its view for %s is given up", head.generation, name)
                return
            self._requests[name] = (head, coordinate)
            if not self._closed:
                self._condition.wait(self._retry)

    def _fetch(self, head: Head, name: Name, coordinate: int | None) -> View | None:
        """The view, or None if a part of the plan cannot be read."""
        if coordinate is None or not head.replicas:
            return View(head)
        peers = self._part(head, f"data/{coordinate}", decode_peers)
        if peers is None:
            return None
        slot = next((peer.slot for peer in peers if peer.place.name == name), None)
        if slot is None:
            return View(head)
        replica = self._part(head, f"replica/{slot}", _decode_replica)
        return None if replica is None else View(head, replica, peers)

    def _part(self, head: Head, part: str, decode: Callable[[bytes, str], _T]) -> _T | None:
        prefix = self._keys.prefix + parts_prefix(head.generation, head.writer)
        key = prefix + part
        entry = self._entries.get(key)
        if entry is None:
            entry = self._store.get(key, timeout=self._timeout)
            if entry is None:
                logger.warning("%s is missing", key)
                return None
            self._entries = {k: e for k, e in self._entries.items() if k.startswith(prefix)}
            self._entries[key] = entry
        value = self._rejected.read(entry, decode)
        if value is None:
            del self._entries[key]
        return value


def _decode_replica(raw: bytes, what: str) -> Replica:
    return decode_replica(loads(raw, what), what)

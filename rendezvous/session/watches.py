"""The watches of one session: each on one exact key, of which only the newest state matters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from reknit.rendezvous.store.protocol import Entry, Event, Snapshot, Store, WatchHandle


class Watches:
    """Opens one watch per key, and closes them together.  Thread-safe.

    `begun_anew` is called when a watch starts over, as it does when the store has lost its history, or all it held.
    """

    def __init__(self, store: Store, begun_anew: Callable[[], None]) -> None:
        self._store, self._begun_anew = store, begun_anew
        self._lock = threading.Lock()
        self._closed = False
        self._handles: dict[str, WatchHandle | None] = {}

    def follow(self, key: str, changed: Callable[[Entry | None], None]) -> None:
        """Follow `key`, unless it is followed already; `changed` gets its newest state, on the watch's thread."""
        with self._lock:
            if key in self._handles or self._closed:
                return
            self._handles[key] = None

        begun = False

        def on_reset(snapshot: Snapshot) -> None:
            nonlocal begun
            if begun:
                self._begun_anew()
            begun = True
            changed(snapshot.entries[0] if snapshot.entries else None)

        def on_events(events: Sequence[Event]) -> None:
            changed(events[-1].entry)

        handle = self._store.watch(key, on_reset, on_events)
        with self._lock:
            if not self._closed:
                self._handles[key] = handle
                return
        handle.close()

    def close(self) -> None:
        """End all watches."""
        with self._lock:
            self._closed = True
            handles = [handle for handle in self._handles.values() if handle is not None]
            self._handles.clear()
        for handle in handles:
            handle.close()

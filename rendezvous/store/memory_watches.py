"""The watches of the store in memory: who is to be told what, in which order, and by which thread."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from reknit.rendezvous.store.protocol import Event, OnEvents, OnReset, Snapshot

_log = logging.getLogger(__name__)

_CLOSE_WAIT = 2.0


class MemoryWatch:
    """One watch; its fields are guarded by the lock of its store."""

    def __init__(
        self, close: Callable[[MemoryWatch], None], key: str, prefix: bool, on_reset: OnReset, on_events: OnEvents
    ) -> None:
        self._close, self.key, self.prefix = close, key, prefix
        self.on_reset, self.on_events = on_reset, on_events
        self.revision = -1
        """What the callbacks have been told of."""
        self.stale = False
        """Whether a snapshot is due before any event: the callback that took the last one raised."""
        self.closed = False

    def __str__(self) -> str:
        return f"{self.key}*" if self.prefix else self.key

    def covers(self, key: str) -> bool:
        """Whether a change of `key` concerns this watch."""
        return key.startswith(self.key) if self.prefix else key == self.key

    def close(self) -> None:
        """End the watch, see `WatchHandle.close`."""
        self._close(self)


class MemoryWatches:
    """All watches of one store, and the queue of what they are still to be told.

    Args:
        lock: the lock of the store; all but `deliver` and `close` want it held.
        snapshot: returns the present entry of a key, or (if the second argument is true) of all that start with it.
    """

    def __init__(self, lock: threading.RLock, snapshot: Callable[[str, bool], Snapshot]) -> None:
        self._lock = lock
        self._snapshot = snapshot
        self._watches: list[MemoryWatch] = []
        # None stands for a snapshot, which is taken when its turn comes.
        self._queue: deque[tuple[MemoryWatch, Sequence[Event] | None]] = deque()
        # Who is telling, and which watch at this moment.  The lock is not held meanwhile: a callback may wait for
        # another thread that uses the store.
        self._teller: int | None = None
        self._told: MemoryWatch | None = None
        self._telling_ended = threading.Condition(lock)
        self.paused = False
        """Whether nobody is told anything at present."""

    def add(self, key: str, prefix: bool, on_reset: OnReset, on_events: OnEvents) -> MemoryWatch:
        """Add a watch, to be told a snapshot first."""
        watch = MemoryWatch(self._close_one, key, prefix, on_reset, on_events)
        self._watches.append(watch)
        self._queue.append((watch, None))
        return watch

    def announce(self, events: Sequence[Event]) -> None:
        """Queue the events of one revision."""
        for watch in self._watches:
            mine = tuple(event for event in events if watch.covers(event.key))
            if mine:
                self._queue.append((watch, mine))

    def start_over(self) -> None:
        """Forget what was queued: everybody gets a snapshot."""
        self._queue.clear()
        self._queue.extend((watch, None) for watch in self._watches)

    def deliver(self) -> None:
        """Run the callbacks that are due, unless somebody (perhaps our own caller's caller) is doing so already."""
        with self._lock:
            if self._teller is not None:
                return
            self._teller = threading.get_ident()
        try:
            while self._tell_next():
                pass
        except BaseException:
            self._teller = None
            raise

    def close(self) -> None:
        """End all watches."""
        for watch in list(self._watches):
            watch.close()

    def _tell_next(self) -> bool:
        """Tell one watch one thing; return whether there was any."""
        with self._lock:
            if not self._queue or self.paused:
                # In the same moment as the decision to stop, so that nobody's change is left lying.
                self._teller = None
                return False
            watch, events = self._queue.popleft()
            if watch.closed or (events is not None and events[0].revision <= watch.revision):
                return True
            snapshot = self._snapshot(watch.key, watch.prefix) if events is None or watch.stale else None
            self._told = watch
        try:
            if snapshot is not None:
                watch.revision, watch.stale = snapshot.revision, True
                watch.on_reset(snapshot)
                watch.stale = False
            elif events is not None:
                watch.revision = events[-1].revision
                watch.on_events(events)
        except Exception:
            _log.exception("a callback of the watch on %s raised; it is told anew", watch)
            # After a failed snapshot not at once, which might go on for ever, but when there is something new.
            if snapshot is None:
                with self._lock:
                    self._queue.append((watch, None))
        finally:
            with self._lock:
                self._told = None
                self._telling_ended.notify_all()
        return True

    def _close_one(self, watch: MemoryWatch) -> None:
        with self._lock:
            watch.closed = True
            if watch in self._watches:
                self._watches.remove(watch)
            if self._teller != threading.get_ident():
                self._telling_ended.wait_for(lambda: self._told is not watch, _CLOSE_WAIT)

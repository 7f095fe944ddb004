"""For how long an agent's heartbeat has not changed, by the observer's own clock and while it had the store.

torch compares the time that one host wrote with another host's clock, and counts on after an outage of the store: then
clocks that differ, or etcd away for longer than a heartbeat lasts, make everybody dead to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

N = TypeVar("N")


class Observed(Generic[N]):
    """Ages of heartbeats.  `away`: seconds between two looks, beyond which nobody counts as silent in between."""

    def __init__(self, away: float) -> None:
        self._away = away
        self._seen: dict[N, tuple[object, float]] = {}  # the heartbeat and when it was first seen
        self._looked: float | None = None

    def ages(self, heartbeats: Mapping[N, object], now: float) -> dict[N, float]:
        """Seconds since each node's heartbeat was first seen as it is.  `now` is a monotonic time."""
        gap = 0.0 if self._looked is None else now - self._looked
        excused = gap if gap > self._away else 0.0
        self._looked = now
        seen = {}
        for node, heartbeat in heartbeats.items():
            last, since = self._seen.get(node, (None, now))
            seen[node] = (heartbeat, since + excused if last == heartbeat else now)
        self._seen = seen
        return {node: max(0.0, now - since) for node, (_, since) in seen.items()}

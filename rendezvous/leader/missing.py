"""Since when nothing is heard of those who had a place."""

from __future__ import annotations

from collections.abc import Iterable

from reknit.rendezvous.plan import Observed, history
from reknit.rendezvous.records import Name, Plan


class Missing:
    """Remembers since when (monotonic) this leader misses whom."""

    def __init__(self) -> None:
        self._since: dict[Name, float] = {}

    def see(self, previous: Plan, observed: Iterable[Observed], now: float) -> dict[Name, float]:
        """Who had a place and has no record, and since when.

        Not those whose end is known: by a record that says so, or by their worker's next process.
        """
        heard = {o.member.worker_id for o in observed}
        self._since = {n: self._since.get(n, now) for n in history(previous) if n.worker_id not in heard}
        return self._since

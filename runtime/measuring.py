"""What an agent knows beside its workers, for its metrics: read when it is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from reknit import __version__
from reknit.health.families import Sample
from reknit.rendezvous.leader.leader import Leader
from reknit.rendezvous.session.session import Session
from reknit.rendezvous.store.protocol import Store

if TYPE_CHECKING:
    from reknit.runtime.station import Station

REFUSED = {"refused": "user", "malformed": "malformed", "overflow": "overflow", "unnamed": "unnamed"}
"""The socket server's counters, and the `cause` by which they are exported."""


OPERATIONS = ("read", "write", "transaction", "lease", "watch")


class Measuring:
    """The numbers of one agent that are kept elsewhere.  `samples` may be called from any thread."""

    def __init__(self, station: Station, session: Session, leader: Leader, store: Store) -> None:
        self._station, self._session, self._leader = station, session, leader
        self._store = store
        station.metrics.ask(self.samples)

    def samples(self) -> Iterator[Sample]:
        """As a source of `Metrics`."""
        state = self._session.state
        connected = state.down_since is None and state.lease is not None
        deadline = state.lease_deadline
        yield Sample("leader", (), state.leading)
        yield Sample("etcd_connected", (), connected)
        yield Sample("lease_left_seconds", (), max(0.0, deadline - time.monotonic()) if deadline is not None else 0.0)
        yield Sample("rejected_records", (), state.counters["rejected"] + self._leader.rejected)
        yield Sample("build_info", (__version__,), 1)
        yield from _counts("etcd_errors", {**dict.fromkeys(OPERATIONS, 0), **self._store.errors})
        turned_away = self._station.server.counters
        yield from _counts("refused_messages", {cause: turned_away[name] for name, cause in REFUSED.items()})
        yield from self._station.standing.samples(state.revision)


def _counts(name: str, counts: Mapping[str, int]) -> Iterator[Sample]:
    for label, count in counts.items():
        yield Sample(name, (label,), count)

"""What an agent's /healthz and /readyz answer.

Healthy means that the loop turns: nothing else is mended by starting the agent anew, least of all an etcd that is away.
Ready means that the job can count on what is here: the agent stands in etcd, and its workers are attached.  They are
asked from the HTTP server's threads, so they only look.
"""

from __future__ import annotations

import time

from reknit.rendezvous.session.session import Session
from reknit.runtime.station import Station

STUCK_SECONDS = 15.0  # the loop turns every second; a host that is short of everything may hold it up
NAMED = 3  # workers that are missing are listed up to this many


class Probes:
    """Whether this agent is well, and ready.  The constructor opens nothing."""

    def __init__(self, station: Station, session: Session) -> None:
        self._station, self._session = station, session
        self._turned: float | None = None
        self._registered = False

    def turn(self, now: float) -> None:
        """The loop takes the next thing."""
        self._turned = now

    def healthy(self) -> tuple[bool, str]:
        """Whether the loop turns.  Before its first turn it waits for etcd, which is no fault of its own."""
        turned = self._turned
        if turned is None:
            return True, "starting"
        late = time.monotonic() - turned
        if late > STUCK_SECONDS:
            return False, f"the agent's loop has been stuck for {late:.0f} s"
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """Whether it is registered in etcd, with its workers, and goes on."""
        station = self._station
        if self._turned is None:
            return False, "starting: not registered in etcd yet"
        if station.ending is not None:
            return False, f"ending: {station.ending[1]}"
        if station.draining is not None:
            return False, f"its workers leave the job: {station.draining}"
        if not self._session.sure(time.monotonic()):
            return False, "not registered in etcd: it has no lease there"
        self._registered = self._registered or self._session.written
        if not self._registered:
            return False, "not registered in etcd yet"
        return self._attached()

    def _attached(self) -> tuple[bool, str]:
        workers = tuple(self._station.workers.values())
        if not workers:
            return False, "no worker has come to this agent's socket yet"
        missing = [w.worker_id for w in workers if w.peer is None and not (w.over or w.finished)]
        if missing:
            more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
            return False, f"not attached: {', '.join(missing[:NAMED])}{more}"
        return True, "ok"

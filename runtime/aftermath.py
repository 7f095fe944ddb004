"""Beside the workers of a job that has ended, until somebody stops it: what `reknit agent --once` does then.

Who keeps containers running starts an agent and its worker again when they have ended.  Without this the job would
begin anew, as a job's name is free once it has ended.  So this agent takes no part in anything: it has no lease and no
records.  But it sees to it that what is left of the job does not expire before it is stopped: else the next container
that is started again would find nothing.  It tells each worker that comes how the job ended, upon which that one ends
in the same way, and whoever scrapes or looks.
"""

from __future__ import annotations

import logging
import queue
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from reknit import __version__
from reknit.health.families import STATES, Sample
from reknit.health.metrics import Metrics
from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import Head, View, decode_head, encode_view
from reknit.rendezvous.records import FINISHED, LOST
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.protocol import Lease, Store
from reknit.runtime.config import Config
from reknit.runtime.ipc.server import PeerEvent, Server
from reknit.runtime.serving import Serving
from reknit.runtime.status_source import StatusSource

log = logging.getLogger("reknit.agent")

RENEW_SECONDS = 3600.0  # between two renewals of the lease on which hangs what is left, for a day
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_HOW = {FINISHED: "has finished", LOST: "has lost its state"}


def ended(store: Store, job: str) -> Head | None:
    """The newest plan of a job that has ended; None if it has not, or there is none.  Raises StoreUnavailable."""
    entry = store.get(Keys(job).head)
    head = None if entry is None else Rejected(log).read(entry, decode_head)
    return head if head is not None and head.state in _HOW else None


class Aftermath:
    """An agent of a job whose newest plan is `head`.  The constructor opens nothing, `run` does."""

    def __init__(self, config: Config, head: Head, store: Store, path: Path) -> None:
        self._config, self._head, self._store = config, head, store
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._server = Server(path, self._inbox.put, lease_seconds=config.ladder.lease)
        metrics = Metrics(config.job)
        metrics.ask(self._samples)
        self._serving = Serving(config, metrics, self)
        self._serving.pages.status = self._status = StatusSource(store, config.job, config.agent)

    def run(self) -> int:
        """Answer whoever comes, until a signal; returns 0.  Raises IpcError, HttpAddressError."""
        before = {number: signal.signal(number, self._on_signal) for number in STOPS}
        try:
            self._server.start()
            http = self._serving.start()
            log.info(
                "job %s %s (generation %d): this agent begins it no more, and stays until it is stopped; its page is "
                "at http://%s",
                self._config.job,
                _HOW[self._head.state],
                self._head.generation,
                http,
            )
            self.keep()
            while (item := self._next()) is not None:
                self._take(item)
        finally:
            self._status.close()
            self._server.close()
            self._serving.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return 0

    def keep(self) -> None:
        """Let what is left of the job stay for another day."""
        try:
            entry = self._store.get(Keys(self._config.job).head)
            if entry is not None and entry.lease:
                self._store.keep_alive(Lease(entry.lease, 0))
        except StoreError as error:
            log.warning("what is left of job %s in etcd may expire: %s", self._config.job, error)

    def _next(self) -> PeerEvent | None:
        """What happens next; None: it is to stop."""
        while True:
            with suppress(queue.Empty):
                found: PeerEvent | None = self._inbox.get(timeout=RENEW_SECONDS)
                return found
            self.keep()

    def healthy(self) -> tuple[bool, str]:
        """For /healthz."""
        return True, "ok"

    def ready(self) -> tuple[bool, str]:
        """For /readyz.  There is nothing left to get ready for; who waits for it shall go on."""
        return True, f"the job {_HOW[self._head.state]}"

    def _take(self, event: PeerEvent) -> None:
        if event.kind == "opened":
            log.info("%s is told that the job %s", event.peer.worker_id, _HOW[self._head.state])
            view = encode_view(View(self._head))
            self._server.send(event.peer, {"type": "plan", "view": view, "seen": time.monotonic()})

    def _samples(self) -> Iterator[Sample]:
        yield Sample("build_info", (__version__,), 1)
        for state in STATES:
            yield Sample("job_state", (state,), state == self._head.state)

    def _on_signal(self, number: int, frame: object) -> None:
        self._inbox.put(None)

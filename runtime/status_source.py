"""What an agent's GET /status tells: the whole job, read from the store on the threads of the HTTP server.

It counts as somebody who looks only while it is asked, and reads once a second at most, however many ask.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from reknit.health.http import Unavailable
from reknit.rendezvous.errors import StoreError
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.looking import Looker
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.shows import LEASE, TELLS
from reknit.rendezvous.store.protocol import Store
from reknit.runtime.status_document import document

log = logging.getLogger("reknit.http")

FRESH = 0.9  # seconds for which a copy is good: who asks once a second gets a new one each time
PATIENCE = 1.0  # seconds in which the agents may tell, for who asks when nobody has for a while
TIMEOUT = 2.0  # seconds of each request to the store
LONGEST = 3.0  # seconds that others wait for one who reads: they hold the server's connections, which probes need


class StatusSource:
    """The status document of a job, for any number of threads.  The constructor opens nothing."""

    def __init__(
        self,
        store: Store,
        job: str,
        agent: str,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        by = f"agent {agent}"
        self._looker = Looker(store, Keys(job), Rejected(log), by, timeout=TIMEOUT, clock=clock, pause=pause)
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._made: float | None = None
        self._copy: dict[str, Any] | None = None
        self._failure = ""

    def __call__(self) -> dict[str, Any]:
        """The document, at most a second old.  Raises Unavailable if the store does not answer."""
        if not self._lock.acquire(timeout=LONGEST):
            raise Unavailable("etcd answers slowly: the job is still being read for somebody else")
        try:
            if self._made is None or self._clock() - self._made >= FRESH:
                self._read()
            if self._copy is None:
                raise Unavailable(self._failure)
            return self._copy
        finally:
            self._lock.release()

    def close(self) -> None:
        """If somebody has asked just now: look no more."""
        with self._lock:
            if self._asked is not None and self._clock() - self._asked < LEASE:
                self._looker.close()

    def _read(self) -> None:
        now = self._clock()
        anew = self._asked is None or now - self._asked > TELLS
        self._asked = now
        try:
            sight = self._looker.see(PATIENCE if anew else 0.0)
            self._copy = document(sight, self._clock())
        except StoreError as error:
            self._copy, self._failure = None, f"etcd does not answer: {error}"
        self._made = self._clock()

"""Reads the whole job, members and newest plan, for an agent that drains and must know whether it is still needed.

On a thread of its own, which runs only while somebody asks, so that the agent's loop waits for nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from reknit.rendezvous.errors import RecordError, StoreError
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.events import JobRead
from reknit.rendezvous.store.protocol import Store
from reknit.rendezvous.whole_job import JobRecords

logger = logging.getLogger(__name__)


class JobReader:
    """Answers each request by one `JobRead`, unless the store does not answer: ask again then.  Opens nothing."""

    def __init__(
        self, store: Store, keys: Keys, emit: Callable[[JobRead], None], rejected: Rejected, *, timeout: float
    ) -> None:
        self._records = JobRecords(store, keys, rejected, timeout=timeout)
        self._emit, self._timeout = emit, timeout
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def request(self) -> None:
        """Read once; while one reading is under way nothing is done."""
        with self._lock:
            if self._closed or (self._thread is not None and self._thread.is_alive()):
                return
            self._thread = threading.Thread(target=self._read, name="session-job", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Begin to stop, without waiting for it."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """Stop; waits for the operations under way."""
        self.stop()
        if self._thread is not None:
            self._thread.join(3 * self._timeout + 1)

    def _read(self) -> None:
        """Members first: what they say of the plan that is the newest afterwards is said of the newest."""
        try:
            members = self._records.members()
            self._emit(JobRead(self._records.plan(), members))
        except (StoreError, RecordError) as error:
            logger.debug("the job cannot be read: %s", error)
        except Exception:
            logger.exception("the job cannot be read")

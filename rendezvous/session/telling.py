"""Tells what this agent knows of its workers for as long as somebody looks at the job (`rendezvous/shows.py`).

A thread of its own, so that neither the agent's loop nor anybody's record waits for it.  It asks the loop by an event,
once a second, and writes what it gets as an answer: an agent whose loop is stuck tells nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreUnavailable
from reknit.rendezvous.session.background import Background
from reknit.rendezvous.session.events import LookedAt
from reknit.rendezvous.shows import AGAIN, EVERY, TELLS, Show, encode_show
from reknit.rendezvous.store.protocol import Entry, Lease, Store

logger = logging.getLogger(__name__)

CLOSEST = 0.2  # seconds between two tellings at least, however many look


class Teller(Background):
    """Opens nothing before `start`; all methods but `close` return at once.

    `lease`: the present one, on which the telling hangs; without one nothing is told.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        lease: Callable[[], Lease | None],
        emit: Callable[[LookedAt], None],
        *,
        timeout: float,
    ) -> None:
        super().__init__("session-teller", timeout)
        self._store, self._key, self._lease, self._emit = store, key, lease, emit
        self._until = 0.0  # to tell
        self._asks_at = 0.0
        self._asked = 0.0
        self._answer: Show | None = None
        self._stands = True  # what was told, in the store: perhaps by an earlier life of this agent
        self._refused = False

    def see(self, look: Entry | None) -> None:
        """Take in the newest state of the look."""
        now = time.monotonic()
        with self._condition:
            if look is None:  # one who looked has gone; another would look again soon
                self._until = min(self._until, now + AGAIN + EVERY)
            else:
                self._until = now + TELLS
                self._asks_at = min(self._asks_at, max(now, self._asked + CLOSEST))
            self._condition.notify_all()

    def tell(self, show: Show) -> None:
        """The answer to a `LookedAt`."""
        with self._condition:
            self._answer = show
            self._condition.notify_all()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._closed and (task := self._choose(time.monotonic())) is None:
                    self._condition.wait(self._wait(time.monotonic()))
                if self._closed or task is None:
                    return
            try:
                task()
            except Exception:
                logger.exception("what goes on here cannot be told")

    def _choose(self, now: float) -> Callable[[], None] | None:
        """What is to be done now."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            return lambda: self._write(answer)
        if now >= self._until:
            if not self._stands:
                return None
            self._stands = False
            return self._delete
        if now >= self._asks_at:
            self._asked, self._asks_at = now, now + EVERY
            return lambda: self._emit(LookedAt())
        return None

    def _wait(self, now: float) -> float | None:
        """Seconds until something will be to do; None: until somebody looks."""
        if now < self._until:
            return max(0.0, min(self._asks_at, self._until) - now)
        return None

    def _write(self, show: Show) -> None:
        lease = self._lease()
        if lease is None:
            return
        try:
            self._store.put(self._key, encode_show(show), lease=lease, timeout=self._timeout)
            self._stands, self._refused = True, False
        except (LeaseLost, StoreUnavailable) as error:
            logger.debug("not told: %s", error)  # it is found out elsewhere; the next second there is more to tell
        except StoreError as error:
            logger.log(logging.DEBUG if self._refused else logging.WARNING, "cannot write %s: %s", self._key, error)
            self._refused = True

    def _delete(self) -> None:
        try:
            self._store.delete(self._key, timeout=self._timeout)
        except StoreError as error:
            logger.debug("%s is left to its lease: %s", self._key, error)

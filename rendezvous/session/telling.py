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


ASK, TAKE_BACK = "ask", "take back"


class Schedule:
    """When to tell, and when to take back what was told.  Pure; times are monotonic seconds.

    `stands`: something was told and stands in the store: at first perhaps by an earlier life of this agent.
    """

    def __init__(self) -> None:
        self.stands = True
        self._until = 0.0
        self._due = 0.0
        self._asked = -EVERY

    def see(self, present: bool, now: float) -> None:
        """Somebody has looked; or not `present`: one who looked has gone, while another would look again soon."""
        if present:
            self._until = now + TELLS
            self._due = min(self._due, max(now, self._asked + EVERY))  # no oftener, however many look
        else:
            self._until = min(self._until, now + AGAIN + EVERY)

    def next(self, now: float) -> str | None:
        """ASK the loop for what there is to tell, TAKE_BACK what was told, or None: nothing is due."""
        if now >= self._until:
            due, self.stands = self.stands, False
            return TAKE_BACK if due else None
        if now < self._due:
            return None
        self._asked, self._due = now, now + EVERY
        return ASK

    def wait(self, now: float) -> float | None:
        """Seconds until something will be due; None: until somebody looks."""
        return max(0.0, min(self._due, self._until) - now) if now < self._until else None


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
        self._schedule = Schedule()
        self._answer: Show | None = None
        self._refused = False

    def see(self, look: Entry | None) -> None:
        """Take in the newest state of the look."""
        with self._condition:
            self._schedule.see(look is not None, time.monotonic())
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
                    self._condition.wait(self._schedule.wait(time.monotonic()))
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
        match self._schedule.next(now):
            case "ask":
                return lambda: self._emit(LookedAt())
            case "take back":
                return self._take_back
        return None

    def _write(self, show: Show) -> None:
        lease = self._lease()
        if lease is None:
            return
        try:
            self._store.put(self._key, encode_show(show), lease=lease, timeout=self._timeout)
            self._schedule.stands, self._refused = True, False
        except (LeaseLost, StoreUnavailable) as error:
            logger.debug("not told: %s", error)  # it is found out elsewhere; the next second there is more to tell
        except StoreError as error:
            logger.log(logging.DEBUG if self._refused else logging.WARNING, "cannot write %s: %s", self._key, error)
            self._refused = True

    def _take_back(self) -> None:
        try:
            self._store.delete(self._key, timeout=self._timeout)
        except StoreError as error:
            logger.debug("%s is left to its lease: %s", self._key, error)

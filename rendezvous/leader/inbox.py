"""News on their way from the watches' threads to the leader's."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from reknit.rendezvous.leader.news import News


class Inbox:
    """`put` and `end` are called from any thread, `wait` from the leader's."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._news: deque[tuple[Callable[[News, float], None], News, float]] = deque()
        self.ended = False

    def put(self, take: Callable[[News, float], None], news: News, now: float) -> None:
        """Queue news that `take` is to get."""
        with self._condition:
            self._news.append((take, news, now))
            self._condition.notify_all()

    def end(self) -> None:
        """End every wait from now on."""
        with self._condition:
            self.ended = True
            self._condition.notify_all()

    def wait(self, until: float | None) -> bool:
        """Wait for news, at most until `until` (monotonic), hand out all of them; return False at the end."""
        with self._condition:
            while not self._news and not self.ended:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._condition.wait(left)
            news, self._news = self._news, deque()
        for take, what, now in news:
            take(what, now)
        return not self.ended

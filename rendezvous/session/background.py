"""What the session's parts with one thread each have in common: how the thread starts, wakes and ends."""

from __future__ import annotations

import threading


class Background:
    """A thread that runs `_run` until `_closed`; whatever it waits for is told by `_condition`.

    Opens nothing before `start`; only `close` waits, for at most the `timeout` of one operation and a second.
    """

    def __init__(self, name: str, timeout: float) -> None:
        self._timeout = timeout
        self._condition = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Begin to stop, without waiting for it."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def close(self) -> None:
        """Stop; waits for the operation under way."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(self._timeout + 1)

    def _run(self) -> None:
        raise NotImplementedError

"""A worker's wish to leave: what SIGTERM, or a signal of the batch system, means to a training process.

The handler only notes the signal, as a handler must not take locks; a thread of its own tells the agent.  A script that
handles SIGTERM itself keeps its own way, and processes that the script forks end by the signal as usual.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType

log = logging.getLogger(__name__)

VARIABLE = "REKNIT_DRAIN_SIGNAL"  # the signal beside SIGTERM, without its SIG


class Departure:
    """Calls `wish(number)` for each signal that asks this process to leave, on a thread of its own."""

    def __init__(self, wish: Callable[[int], None]) -> None:
        self._wish = wish
        self._pid = os.getpid()
        self._came: queue.SimpleQueue[int] = queue.SimpleQueue()  # its put may interrupt itself
        self._handled: set[int] = set()

    def install(self) -> None:
        """Take over the signals that the script leaves to us; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _signals(os.environ.get(VARIABLE, "")):
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._on_signal)
                self._handled.add(number)
        if self._handled:
            threading.Thread(target=self._tell, name="reknit-departure", daemon=True).start()

    @property
    def handles_sigterm(self) -> bool:
        """Whether SIGTERM is still left to us."""
        return signal.SIGTERM in self._handled and signal.getsignal(signal.SIGTERM) == self._on_signal

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked process, such as a data loader's worker
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        else:
            self._came.put(number)

    def _tell(self) -> None:
        while True:
            number = self._came.get()
            try:
                self._wish(number)
            except Exception:
                log.exception("%s could not be handled", signal.Signals(number).name)


def _signals(name: str) -> Sequence[int]:
    chosen = getattr(signal, f"SIG{name}", None) if name else None
    return [signal.SIGTERM, chosen] if isinstance(chosen, signal.Signals) else [signal.SIGTERM]

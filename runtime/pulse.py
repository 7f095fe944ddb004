"""The worker's pulse: a thread that tells the agent, about once a second, what the training thread is stuck at.

As long as steps are made it says nothing.  It costs the training thread nothing: it looks at what `Phase` keeps and at
the thread's frames.  A process that is stopped, or whose code holds the interpreter, has no pulse.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from reknit.runtime.recovery.phase import Phase, Stuck, Watch

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
PER_HANG = 15  # so often at least in the hang time
DEPTH = 40

Tell = Callable[[Stuck], None]


class Pulse:
    """Tells what the training thread has been at for longer than a moment, and once more when that has ended."""

    def __init__(self, phase: Phase, hang: float, tell: Tell) -> None:
        self._watch = Watch(phase, hang, files_of)
        self._every = min(EVERY_SECONDS, hang / PER_HANG)
        self._tell = tell
        self._last: Stuck | None = None
        self._failed = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="reknit-pulse", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _beat(self) -> None:
        while not self._ended.wait(self._every):
            self._say()

    def _say(self) -> None:
        """Without a pulse this worker would count as hung as soon as anybody waits for it, so nothing may end it."""
        try:
            stuck = self._watch.look(time.monotonic(), self._every)
            if stuck is None and self._last is not None:
                self._tell(self._last._replace(seconds=0.0))
            elif stuck is not None:
                self._tell(stuck)
            self._last = stuck
        except Exception:
            log.log(logging.DEBUG if self._failed else logging.ERROR, "one pulse is left out", exc_info=True)
            self._failed = True


def files_of(thread: int) -> list[str]:
    """The files of a thread's frames, innermost first; none if there is no such thread."""
    frame: FrameType | None = sys._current_frames().get(thread)
    files: list[str] = []
    while frame is not None and len(files) < DEPTH:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return files

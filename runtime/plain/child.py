"""One process that runs the user's script, and dies with the worker that hosts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

GRACE_SECONDS = 5.0  # from SIGTERM to SIGKILL

# By exec and not by preexec_fn, as our process has threads.  The kernel kills it when the *thread* that started it
# ends.  1 is PR_SET_PDEATHSIG, 9 SIGKILL.
_DIES_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """The newest process, if any.  All methods are for one thread, which outlives the process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None
        self._began = 0.0

    def start(self, script: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a Python script with its arguments; returns the process id.  There must be no living one."""
        python = [sys.executable, "-u", *script]
        command = [sys.executable, "-c", _DIES_WITH_PARENT, str(os.getpid()), *python]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=dict(environment))
        self._kill_at, self._began = None, time.monotonic()
        return self._process.pid

    @property
    def started(self) -> bool:
        """Whether there is one that was not asked to end."""
        return self._process is not None and self._kill_at is None

    @property
    def returncode(self) -> int | None:
        """As in `subprocess`; None without a process, or while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def lived(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    def wait(self, seconds: float) -> None:
        """Return when it has ended, or after so many seconds."""
        if self._process is None or self._process.poll() is not None:
            time.sleep(seconds)
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass

    def terminate(self) -> None:
        """Ask it to end; returns at once."""
        if self._process is not None and self._kill_at is None:
            self._kill_at = time.monotonic() + GRACE_SECONDS
            self._process.send_signal(signal.SIGTERM)

    def has_ended(self) -> bool:
        """Whether there is none any more, or yet; one that was asked to end and does not is killed when time is up."""
        if self._process is None or self._process.poll() is not None:
            return True
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._process.kill()
        return False

    def end(self) -> None:
        """End it, and wait for that."""
        self.terminate()
        while not self.has_ended():
            self.wait(0.05)

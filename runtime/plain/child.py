"""One process that runs the user's script, and dies with the worker that hosts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

REST_SECONDS = 5.0  # for what a script has left behind to die of SIGKILL: what hangs in a driver may never do

# By exec and not by preexec_fn, as our process has threads.  The kernel kills it when the *thread* that started it
# ends.  1 is PR_SET_PDEATHSIG, 9 SIGKILL.
_DIES_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


class Child:
    """The newest process, if any.  All methods are for one thread, which outlives the process.

    `grace`: seconds from SIGTERM to SIGKILL.  `leads`: we lead a process group in which there is nobody else, so that
    what the script has started, and left behind, can be found there.  It has no group of its own: the agent kills ours
    when we are dead, and would not know of another.
    """

    def __init__(self, grace: float, leads: bool = False) -> None:
        self._grace, self._leads = grace, leads
        self._rest_until = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_at: float | None = None
        self._began = 0.0

    def start(self, script: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a Python script with its arguments; returns the process id.  There must be no living one."""
        python = [sys.executable, "-u", *script]
        command = [sys.executable, "-c", _DIES_WITH_PARENT, str(os.getpid()), *python]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=dict(environment))
        self._kill_at, self._began, self._rest_until = None, time.monotonic(), 0.0
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
            self._kill_at = time.monotonic() + self._grace
            self._process.send_signal(signal.SIGTERM)

    def has_ended(self) -> bool:
        """Whether there is none any more, or yet; one that was asked to end and does not is killed when time is up.

        What one that was asked to end leaves behind in our group is killed, and has to be gone, too.
        """
        if self._process is None or self._process.poll() is not None:
            return self._kill_at is None or not self._leads or self._rest_is_gone()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._process.kill()
        return False

    def _rest_is_gone(self) -> bool:
        now = time.monotonic()
        if self._rest_until == 0.0:
            self._rest_until = now + REST_SECONDS
        if now >= self._rest_until:
            return True
        rest = _others_in_group()
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not rest:
            self._rest_until = now  # once is enough
        return not rest

    def end(self) -> None:
        """End it, and wait for that."""
        self.terminate()
        while not self.has_ended():
            self.wait(0.05)


def _others_in_group() -> list[int]:
    """The living processes of our process group but for ourselves."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # it has ended
        if int(group) == os.getpgrp() and int(folder.name) != os.getpid() and state not in ("Z", "X"):
            found.append(int(folder.name))
    return found

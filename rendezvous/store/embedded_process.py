"""The process of an embedded etcd: its life is bound to ours, and on request it is started again when it dies."""

from __future__ import annotations

import logging
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.2, 5.0  # seconds from a death to the next start; doubles
_HEALTHY = 60.0  # seconds of life after which a death has nothing to do with the one before
_STOP_SECONDS = 2.0  # it may wait for its clients to leave

# Run by a Python of its own between us and etcd, since nothing may run between fork and exec in a process that has
# threads (or grpc).  The kernel kills etcd when the *thread* that started it ends, and 1 is PR_SET_PDEATHSIG.
_EXEC_BOUND_TO_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent has ended already")
os.execv(sys.argv[2], sys.argv[2:])
"""


def next_delay(before: float, lived: float) -> float:
    """The seconds until the next start of an etcd that `lived` so long, after a wait of `before` (0: none)."""
    return _FIRST_DELAY if before == 0 or lived >= _HEALTHY else min(2 * before, _LONGEST_DELAY)


class EtcdProcess:
    """An etcd and the thread that it is bound to; the constructor starts both.  Raises OSError if that fails.

    `log` gets what it prints.
    """

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = command, log
        self._lock = threading.Lock()
        self._kept = False
        self._ended = threading.Event()
        started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()
        # The kernel binds etcd's life to the thread that starts it, so that is one which lives as long as etcd.
        self._keeper = threading.Thread(target=self._run, args=(started,), name="reknit-etcd", daemon=True)
        self._keeper.start()
        process = started.get()
        if isinstance(process, OSError):
            self._keeper.join()
            raise process
        self._process = process

    @property
    def pid(self) -> int | None:
        """The process id while it runs, else None."""
        process = self._process
        return process.pid if process.poll() is None else None

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def keep(self) -> None:
        """From now on start it again, on its data and its ports, whenever it dies by itself."""
        self._kept = True

    def end(self, gently: bool) -> None:
        """End it for good and wait for that; `gently`: ask first."""
        with self._lock:
            self._ended.set()
            process = self._process
        if gently:
            process.send_signal(signal.SIGTERM)
            # Its data survive a kill.
            with suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        process.kill()
        process.wait()
        self._keeper.join()

    def _run(self, started: queue.SimpleQueue[subprocess.Popen[bytes] | OSError]) -> None:
        """Start it, and live as long as it."""
        try:
            process = self._start()
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        delay, began = 0.0, time.monotonic()
        while True:
            code = process.wait()
            delay = next_delay(delay, time.monotonic() - began)
            if not self._kept or self._ended.is_set():
                return
            logger.warning("etcd has ended (code %d), see %s: starting it again in %.1f s", code, self._log, delay)
            if self._ended.wait(delay):
                return
            began = time.monotonic()
            with self._lock:
                if self._ended.is_set():
                    return
                try:
                    process = self._process = self._start()
                except OSError as error:
                    logger.error("etcd cannot be started again: %s", error)

    def _start(self) -> subprocess.Popen[bytes]:
        # Settings meant for another etcd (and what Kubernetes sets for a service called etcd) are not for this one.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        if platform.machine() == "aarch64":
            environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        bound = [sys.executable, "-I", "-S", "-c", _EXEC_BOUND_TO_PARENT, str(os.getpid()), *self._command]
        with self._log.open("ab") as output:
            # In a session of its own: Ctrl-C in the terminal is for us, and we stop etcd when we no longer need it.
            return subprocess.Popen(
                bound, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )

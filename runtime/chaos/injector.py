"""Strikes processes with a signal, all at once, and never a wrong one.

A process id may be given to somebody else between the look at a process and the signal.  So the processes are gripped
first (a pidfd each), then looked at, and the signal goes through the grip: to the process that was looked at or to
nobody.  The fault tests strike through this module too.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType


class Grip:
    """A hold on some processes.  The constructor opens a descriptor for each, which `close` closes.

    `pids` are those that were there, in the order given; `missing` those that were not.  Needs Linux.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._descriptors: dict[int, int] = {}
        self.missing: list[int] = []
        try:
            for pid in dict.fromkeys(pids):
                self._take(pid)
        except BaseException:
            self.close()
            raise

    def _take(self, pid: int) -> None:
        try:
            self._descriptors[pid] = os.pidfd_open(pid)
        except ProcessLookupError:
            self.missing.append(pid)

    @property
    def pids(self) -> list[int]:
        """The processes that are held."""
        return list(self._descriptors)

    def strike(self, number: int) -> float:
        """Send the signal to all, one right after the other; a process that has ended since is passed over.

        Returns the moment right before the first (CLOCK_MONOTONIC seconds).  Raises PermissionError for a process of
        somebody else: those before it have been struck.
        """
        moment = time.monotonic()
        for descriptor in self._descriptors.values():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
        return moment

    def all_ended(self) -> bool:
        """Whether none of them runs or is stopped any more."""
        poll = select.poll()
        for descriptor in self._descriptors.values():
            poll.register(descriptor, select.POLLIN)
        return len(poll.poll(0)) == len(self._descriptors)

    def close(self) -> None:
        """Let go, whatever state they are in."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __enter__(self) -> Grip:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def strike(pids: Iterable[int], number: int = signal.SIGKILL) -> float:
    """Send a signal to several processes at once; those that are gone already are passed over.

    Returns the moment right before the first signal (CLOCK_MONOTONIC seconds).
    """
    with Grip(pids) as grip:
        return grip.strike(number)

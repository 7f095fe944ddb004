"""How long each phase of a worker's way from one generation to the next took.

Moments are noted as they come, by whichever thread sees them; CLOCK_MONOTONIC, which agent and worker share.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Passage:
    """One way after the other.  Plans that are superseded on the way lengthen it, and do not begin another."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sign: float | None = None
        self._seen: float | None = None
        self._heard: float | None = None
        self._left: float | None = None
        self._connected: float | None = None

    def hear(self, seen: float | None = None) -> None:
        """A newer plan has come; its agent had `seen` it before, if it says when."""
        if self._heard is None:
            self._heard = now = self._clock()
            self._seen = now if seen is None else min(now, seen)

    def leave(self, unexpected: bool) -> None:
        """The worker leaves its generation; `unexpected`: something broke, and it knows of no newer plan."""
        if self._left is None:
            self._left = self._clock()
            self._sign = self._left if unexpected else None

    def connected(self) -> None:
        """The groups of a generation stand."""
        self._connected = self._clock()

    def forget(self) -> None:
        """The worker has no place: how long it waits for one is no part of a way."""
        self._sign = self._seen = self._heard = self._left = self._connected = None

    def arrive(self, behind: bool) -> dict[str, float]:
        """The worker has come to its generation; `behind`: it knows a newer plan already, which begins another way.

        Seconds by phase: `detect` only where something broke before the plan came.  Nothing for one that came from
        nowhere.
        """
        now, phases = self._clock(), dict[str, float]()
        if self._left is not None and self._connected is not None:
            heard = self._heard if self._heard is not None else self._left
            seen = self._seen if self._seen is not None else heard
            if self._sign is not None:
                phases["detect"] = seen - self._sign
            phases["plan"] = heard - seen
            phases["interrupt"] = self._left - heard
            phases["connect"] = self._connected - max(self._left, heard)
            phases["sync"] = now - self._connected
        self.forget()
        if behind:
            self.hear()
        return {phase: round(max(0.0, seconds), 6) for phase, seconds in phases.items()}

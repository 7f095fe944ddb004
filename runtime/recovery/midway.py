"""Attempts that ended midway: whether the replica's own groups can still be used.

A formation's groups outlive generations, since whoever begins an attempt goes through its work within the replica, and
only the reduction between replicas fails.  But a script may use the data group before that, and its failure takes one
member out midway, while its mates wait for it within the replica: natively, where no plan interrupts them, and in the
next generation their message would meet another one.  So a member that has left midway frees whoever still waits for
it, and the formation is made anew, unless in that attempt nothing had been sent within the replica at all.

That is told by the kernel's counters of each connection.  What anybody has begun there has sent something: at least to
say that it is ready to receive.  With NCCL nothing is known, so it counts as sent.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

log = logging.getLogger(__name__)

LOOK = 0.005  # seconds between two looks whether somebody has begun to wait for this member


class Formed(Protocol):
    """What is needed of a formation."""

    ended: bool
    serial: int

    def traffic(self) -> int | None:
        """How many bytes have moved in its groups so far; None if that is not known."""

    def interrupt(self) -> None:
        """Free everybody who waits in its groups."""


class Midway:
    """One worker's last attempt, as far as the replica's own groups are concerned."""

    def __init__(self) -> None:
        self._begun: tuple[int, int | None] = 0, None  # the formation, and what had been sent in it by `open`
        self._left = False

    def open(self, formation: Formed) -> None:
        """Nobody in the replica has begun the next attempt: they wait for this worker's word."""
        self._begun = formation.serial, formation.traffic()

    def leave(self) -> None:
        """It has ended midway."""
        self._left = True

    def words(self, formation: Formed | None) -> tuple[int, int]:
        """For a round: whether this worker left midway, and whether anything was sent in the attempts since `open`."""
        return int(self._left), int(formation is not None and self._has_moved(formation))

    @staticmethod
    def spoils(said: Sequence[Sequence[int]]) -> bool:
        """Whether, by everybody's words, something may be left unmatched in the replica's groups."""
        return any(left for left, _ in said) and any(moved for _, moved in said)

    def settle(self) -> None:
        """All members know, and have made the groups anew if need be."""
        self._left = False

    def _has_moved(self, formation: Formed) -> bool:
        serial, before = self._begun
        return before is None or serial != formation.serial or formation.traffic() != before

    @contextmanager
    def freeing(self, formation: Formed | None) -> Iterator[None]:
        """While this worker waits for its mates: free those who still wait for it in the attempt that it left."""
        if not self._left or formation is None:
            yield
            return
        over = threading.Event()
        watch = threading.Thread(target=self._free, args=(formation, over), name="reknit-free-mates", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()

    def _free(self, formation: Formed, over: threading.Event) -> None:
        while not formation.ended:
            if self._has_moved(formation):
                log.info("the replica's groups are made anew: an attempt has ended midway in its work")
                formation.interrupt()
                return
            if over.wait(LOOK):
                return

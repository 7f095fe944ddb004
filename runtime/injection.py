"""Named points of a step at which a test may kill or stop its own process.  Outside of tests nothing ever happens here."""

from __future__ import annotations

from collections.abc import Callable

_handler: Callable[[str, int], None] | None = None


def install(handler: Callable[[str, int], None] | None) -> None:
    """Call `handler(phase, step)` whenever a point is reached.

    In an attempt: reduce, vote, half voted (in the data group, not yet in the replica), voted, committed.  In a reinit:
    connect (nothing is built yet), compare (all groups are), heal, be healed, ready (at the decided version, and told the
    agent so, before the last round).
    """
    global _handler
    _handler = handler


def reach(phase: str, step: int) -> None:
    """This worker is at `phase` of the attempt on top of `step` committed steps."""
    if _handler is not None:
        _handler(phase, step)

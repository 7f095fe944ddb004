"""Named points of a step at which a test may kill its own process.  Outside of tests nothing ever happens here."""

from __future__ import annotations

from collections.abc import Callable

_handler: Callable[[str, int], None] | None = None


def install(handler: Callable[[str, int], None] | None) -> None:
    """Call `handler(phase, step)` whenever a point is reached.

    In an attempt: reduce, vote, half voted (in the data group, not yet in the replica), voted, committed.  In a reinit:
    heal, be healed.
    """
    global _handler
    _handler = handler


def reach(phase: str, step: int) -> None:
    """This worker is at `phase` of the attempt on top of `step` committed steps."""
    if _handler is not None:
        _handler(phase, step)

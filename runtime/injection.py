"""Named points of a step and of a reinit, for tests that let a process die or stop there.  Else nothing happens."""

from __future__ import annotations

from collections.abc import Callable

_handler: Callable[[str, int], None] | None = None


def install(handler: Callable[[str, int], None] | None) -> None:
    """Call `handler(phase, step)` whenever a point is reached.

    In an attempt: reduce, vote, half voted (in the data group, not yet in the replica), voted, committed.  In a reinit:
    connect (nothing is built yet), compare (all groups are), restore (a checkpoint is about to be read), restore
    together (all know who could), heal, be healed (the structure has come), heal halfway, be healed halfway, ready (at
    the decided version, before the last round).
    """
    global _handler
    _handler = handler


def reach(phase: str, step: int) -> None:
    """This worker is at `phase` of the attempt on top of `step` committed steps."""
    if _handler is not None:
        _handler(phase, step)

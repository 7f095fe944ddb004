"""Whether all agents of a new round are there, before any of them relies on the others.

A round can be completed with an agent in it that has died but has not been silent for long enough: the others would
wait minutes for what it was to write, fail, and close the rendezvous for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch.distributed as dist

from reknit.rendezvous.errors import ReknitError

_DECISION, _YES, _NO = "met", "yes", "no"
_LOOK = 0.1  # seconds between two looks


class NotMetError(ReknitError):
    """An agent of the round has left before all had come: the others leave too, for the next round."""


def meet(
    store: dist.Store,
    rank: int,
    size: int,
    lost: Callable[[], bool],
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when all `size` agents of the round, whose own part of the store this is, are there.

    `lost` says whether one has left.  What the first decides holds for all: nobody goes on whom another gave up.
    Raises NotMetError if the round is given up, which it also is after `seconds`; dist.DistNetworkError as `store`.
    """
    store.set(f"here/{rank}", "1")
    # Only rank 0 looks for all: looked everybody, the reads would be as the square of the hosts.
    awaited = [f"here/{other}" for other in range(size)] if rank == 0 else []
    deadline = clock() + seconds
    while not store.check([_DECISION]):
        while awaited and store.check(awaited[-1:]):
            awaited.pop()
        if rank == 0 and not awaited:
            store.compare_set(_DECISION, "", _YES)
        elif lost() or clock() >= deadline:
            store.compare_set(_DECISION, "", _NO)
        else:
            sleep(_LOOK)
    if store.get(_DECISION) != _YES.encode():
        raise NotMetError(f"not all {size} agents of the round came: rank {rank} leaves for the next round")

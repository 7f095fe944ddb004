"""torchrun over etcd v3: `torchrun --rdzv-backend=reknit-etcd --rdzv-endpoint=H:P,H:P …`, for any script.

It is torch's own dynamic rendezvous; what is ours is where its state lies (etcd, which outlives every agent), a fresh
store for the workers of each round, and the clock by which an agent counts as dead.  torchrun loads this module at
every start, whatever the backend: so it imports nothing until it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND = "reknit-etcd"


def register() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """The entry point of the group `torchrun.handlers`: returns what makes a handler from torchrun's parameters."""
    return create


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """Connect to etcd and return this agent's handler.

    Raises RendezvousConnectionError if etcd can't be reached or says no, ValueError for settings that can't be.
    """
    from reknit.rendezvous.torchrun.making import make

    return make(parameters)

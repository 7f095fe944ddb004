"""A group of two groups: everybody's partner in `inner` times everybody's peers in `outer`.

First and last stages of all replicas (a Megatron IO group) are such a product: the data group of the own stage, and the
other end of the own pipeline.  So they need no further connections across the job, and end when the data groups end.
Ranks count replica by replica, the ends within.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from reknit.rendezvous.layout import Layout
from reknit.runtime.communicator.collectives import Collectives, Finish, Launch
from reknit.runtime.communicator.work import Work


class Paired(Collectives):
    """The operations that code with an IO group uses.  They are done when they return, `asynchronous` or not."""

    def __init__(self, outer: Collectives, inner: Collectives) -> None:
        self.outer, self.inner = outer, inner
        self._layout = Layout.of(outer=outer.size, inner=inner.size)
        self.rank = self._layout.rank(outer=outer.rank, inner=inner.rank)
        self.size = self._layout.world_size
        self.name = f"{outer.name} with {inner.name}"

    def barrier(self, *, asynchronous: bool = False) -> Work:
        """Wait until every rank has come here."""
        self.outer.barrier()
        return self.inner.barrier()

    def broadcast(self, tensor: torch.Tensor, source: int, *, asynchronous: bool = False) -> Work:
        """Every rank's tensor becomes that of `source`."""
        self._check_rank("broadcast", source)
        place = self._layout.coordinate(source)
        if place["inner"] == self.inner.rank:
            self.outer.broadcast(tensor, place["outer"])
        return self.inner.broadcast(tensor, place["inner"])

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", *, asynchronous: bool = False) -> Work:
        """Every rank's tensor becomes the reduction of all."""
        self.inner.all_reduce(tensor, op)
        return self.outer.all_reduce(tensor, op)

    def reduce(self, tensor: torch.Tensor, destination: int, op: str = "sum", *, asynchronous: bool = False) -> Work:
        """The tensor of `destination` becomes the reduction of all."""
        self._check_rank("reduce", destination)
        return self.all_reduce(tensor, op)

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, asynchronous: bool = False) -> Work:
        """`outputs[r]` becomes rank r's tensor, at every rank."""
        self._check_list("all_gather", outputs, like=tensor)
        everything = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        work = self.all_gather_into_tensor(everything, tensor)
        with torch.no_grad():
            for output, part in zip(outputs, everything, strict=True):
                output.copy_(part)
        return work

    def all_gather_into_tensor(self, output: torch.Tensor, tensor: torch.Tensor, *, asynchronous: bool = False) -> Work:
        """`output` becomes all ranks' tensors one after the other."""
        ends = torch.empty((self.inner.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        self.inner.all_gather_into_tensor(ends, tensor)
        return self.outer.all_gather_into_tensor(output, ends)

    def _start(
        self,
        operation: str,
        launch: Launch,
        *,
        finish: Finish | None = None,
        alone: Callable[[], None] | None = None,
        asynchronous: bool = False,
        peer: int | None = None,
    ) -> Any:
        raise self._refusal(
            operation, "is not for first and last stages together: use barrier, broadcast, (all_)reduce or all_gather"
        )

"""A group within a replica, which stays the same object while formations come and go, whatever each is made of.

Over gloo it is as any elastic group.  With NCCL there is a group of torch's own along the axis: operations go to it as
they come, with torch's own handles and errors, and what is between two formations is as with gloo.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from reknit.runtime.elastic_group import ElasticGroup, Present

OPERATIONS = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "gather", "scatter", "barrier", "monitored_barrier"),
    *("allgather", "all_gather_single", "all_gather_single_coalesced", "_allgather_base"),
    *("allgather_into_tensor_coalesced", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_single_coalesced"),
    *("_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "alltoall", "all_to_all_single", "alltoall_base"),
    *("send", "recv", "recv_anysource", "_start_coalescing", "_end_coalescing"),
)


class PresentWithin(Present, Protocol):
    """Where the operations of a group within a replica go."""

    def torch_group(self) -> dist.ProcessGroup | None:
        """torch's own group of the present formation; None if a communicator is to be asked for."""


class ReplicaGroup(ElasticGroup):
    """See this module."""

    def __init__(self, name: str, present: PresentWithin) -> None:
        super().__init__(name, present, across_replicas=False)
        self._within = present

    @property
    def _device_types(self) -> list[torch.device]:
        inner: Any = self._within.torch_group()
        types: list[torch.device] = super()._device_types if inner is None else inner._device_types
        return types


def _forwarding(name: str) -> Callable[..., Any]:
    own = getattr(ElasticGroup, name)

    def operation(self: ReplicaGroup, *arguments: Any, **keywords: Any) -> Any:
        inner = self._within.torch_group()
        if inner is None:
            return own(self, *arguments, **keywords)
        return getattr(inner, name)(*arguments, **keywords)

    return operation


for _name in OPERATIONS:
    if hasattr(ElasticGroup, _name):  # versions of torch differ in what they call
        setattr(ReplicaGroup, _name, _forwarding(_name))

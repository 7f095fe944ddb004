"""Bringing tensors into the form that gloo takes, and the results back.

gloo works on dense CPU memory; on some operations it copies CUDA tensors to the CPU and back itself, on the
others it refuses them.  What it does not take goes through a contiguous CPU copy here, pinned if it came from CUDA.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

GLOO_COPIES_CUDA = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter"})
"""Operations for which gloo moves CUDA tensors through the CPU by itself, on streams of its own."""


@dataclass(frozen=True)
class Staged:
    """A tensor, and the one that gloo works on in its stead: often the same memory."""

    original: torch.Tensor
    working: torch.Tensor
    copied: bool

    def bring_back(self) -> None:
        """Copy the result into the original."""
        if self.copied:
            self.original.detach().copy_(self.working)


def takes(operation: str, tensor: torch.Tensor) -> bool:
    """Whether gloo takes this tensor for this operation as it is."""
    on_device = tensor.device.type == "cpu" or (tensor.device.type == "cuda" and operation in GLOO_COPIES_CUDA)
    return on_device and tensor.is_contiguous()


def stage(operation: str, tensor: torch.Tensor, *, copy_in: bool = True) -> Staged:
    """The tensor as gloo takes it.  With `copy_in=False` the contents do not matter: it is only written to."""
    if takes(operation, tensor):
        return Staged(tensor, tensor.detach(), copied=False)
    if tensor.device.type == "cpu" or operation in GLOO_COPIES_CUDA:
        working = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    else:
        working = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
    if copy_in:
        working.copy_(tensor.detach())
    return Staged(tensor, working, copied=True)


def stage_all(operation: str, tensors: Sequence[torch.Tensor], *, copy_in: bool = True) -> list[Staged]:
    """`stage` for each."""
    return [stage(operation, tensor, copy_in=copy_in) for tensor in tensors]

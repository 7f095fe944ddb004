"""The process's random state and the modules' buffers, taken before an attempt and put back for a retry."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch


def take_random_state() -> dict[str, Any]:
    """Python's, numpy's (if it is loaded), torch's and, where CUDA is in use, the current device's random state."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, key, *rest = numpy.random.get_state()
        state["numpy"] = (kind, key.tolist(), *rest)  # plain numbers: a checkpoint is read without numpy's pickles
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def put_random_state(state: Mapping[str, Any]) -> None:
    """Put back what `take_random_state` took, here or in a peer."""
    random.setstate(_tuples(state["python"]))
    torch.set_rng_state(state["torch"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, (list, tuple)) else value


class Snapshot:
    """What a retry starts from beside parameters and optimizer state, which an attempt does not change."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._random = take_random_state()
        self._buffers = [(buffer, buffer.detach().clone()) for module in modules for buffer in module.buffers()]

    def restore(self) -> None:
        """Put everything back."""
        put_random_state(self._random)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)

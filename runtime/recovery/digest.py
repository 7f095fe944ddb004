"""A hash of a whole state, equal on two workers exactly if every bit of their parameters and optimizer state is."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from reknit.runtime.sharding import local


def digest(value: Any) -> str:
    """SHA-256 over nested dicts, lists, tensors and plain values; the order of a dict's keys does not matter."""
    total = hashlib.sha256()
    _feed(total, value)
    return total.hexdigest()


def _feed(total: Any, value: Any) -> None:
    match value:
        case torch.Tensor():
            plain = local(value).cpu().contiguous()
            total.update(f"tensor {plain.dtype} {tuple(plain.shape)}\n".encode())
            if plain.numel():
                total.update(plain.reshape(-1).view(torch.uint8).numpy())
        case dict():
            total.update(f"dict {len(value)}\n".encode())
            for key in sorted(value, key=repr):
                total.update(f"{key!r}\n".encode())
                _feed(total, value[key])
        case list() | tuple():
            total.update(f"list {len(value)}\n".encode())
            for item in value:
                _feed(total, item)
        case _:
            total.update(f"{value!r}\n".encode())

"""Moves one worker's whole registered state to a peer at the same coordinate, over their data group.

The structure travels pickled with the tensors taken out of it; each tensor then travels as its raw bytes, straight from
its own storage and into the memory that the receiver gives to the user's `load_state_dict`.  Peers trust each other:
the data plane is not authenticated (README, "What it does not do").
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Protocol

import torch

CHUNK_BYTES = 16 * 2**20


class Wire(Protocol):
    """What healing needs of a communicator: ordered point-to-point messages of known size."""

    def send(self, tensor: torch.Tensor, destination: int, tag: int = 0) -> object:
        """Send; raises Interrupted."""

    def recv(self, tensor: torch.Tensor, source: int, tag: int = 0) -> object:
        """Receive into `tensor`; raises Interrupted."""


class _TensorsOut(pickle.Pickler):
    """Pickles everything but tensors, which it collects."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return None
        self.tensors.append(obj.detach())
        return ("tensor", len(self.tensors) - 1, obj.dtype, tuple(obj.shape))


class _TensorsIn(pickle.Unpickler):
    """Makes an empty tensor for each one that was taken out."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        _, index, dtype, shape = pid
        self.tensors[index] = torch.empty(shape, dtype=dtype)
        return self.tensors[index]


def send_state(wire: Wire, destination: int, state: Any) -> int:
    """Send `state`; returns the bytes sent.  Raises Interrupted."""
    file = io.BytesIO()
    pickler = _TensorsOut(file)
    pickler.dump(state)
    structure = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    wire.send(torch.tensor([structure.numel()], dtype=torch.int64), destination)
    total = _send_bytes(wire, destination, structure)
    for tensor in pickler.tensors:
        if tensor.numel():
            plain = tensor.cpu().contiguous()
            total += _send_bytes(wire, destination, plain.view(-1).view(torch.uint8))
    return total


def receive_state(wire: Wire, source: int) -> tuple[Any, int]:
    """Receive a whole state; returns it and its bytes.  Nothing of the worker's own is touched.  Raises Interrupted."""
    size = torch.zeros(1, dtype=torch.int64)
    wire.recv(size, source)
    structure = torch.empty(int(size.item()), dtype=torch.uint8)
    total = _receive_bytes(wire, source, structure)
    unpickler = _TensorsIn(io.BytesIO(structure.numpy().tobytes()))
    state = unpickler.load()
    for index in sorted(unpickler.tensors):
        tensor = unpickler.tensors[index]
        if tensor.numel():
            total += _receive_bytes(wire, source, tensor.view(-1).view(torch.uint8))
    return state, total


def _send_bytes(wire: Wire, destination: int, raw: torch.Tensor) -> int:
    for chunk in raw.split(CHUNK_BYTES):
        wire.send(chunk, destination)
    return raw.numel()


def _receive_bytes(wire: Wire, source: int, raw: torch.Tensor) -> int:
    for chunk in raw.split(CHUNK_BYTES):
        wire.recv(chunk, source)
    return raw.numel()

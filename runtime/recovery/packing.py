"""A worker's registered state as ranges of bytes that are the same on every peer, and the rest.

Peers at one coordinate hold the same parameters and the same optimizer state, bit by bit.  Those tensors, in an order
that follows from their names alone, are the *shared* part: one long row of bytes, cut into chunks, each of which can
come from any peer.  Everything else (buffers, random state, what other objects say) may differ from peer to peer, and
comes whole from one.  Nothing is copied but a chunk at a time.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from reknit.runtime.recovery.checksum import checksum, combined
from reknit.runtime.sharding import part_of

CHUNK_BYTES = 8 * 2**20
SMALL = 16  # a tensor of less than this part of a chunk shares one with others
ALIGNMENT = 64  # bytes; a tensor begins at a multiple


class Piece(NamedTuple):
    """Bytes [begin, end) of one tensor, which lie at `offset` within their chunk."""

    tensor: int
    begin: int
    end: int
    offset: int


class Chunks:
    """The shared tensors as a row of bytes, cut into chunks.

    Any dtype, device and strides; what travels is a tensor's contiguous form.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], chunk_bytes: int | None = None) -> None:
        self.tensors = list(tensors)
        self._chunk_bytes = chunk_bytes or CHUNK_BYTES
        self._pieces: list[list[Piece]] = []
        self._plain: tuple[int, torch.Tensor] | None = None  # the contiguous form of a tensor that is not
        self._cut()

    def _cut(self) -> None:
        """Small tensors share chunks; a large one has chunks of its own, which need not be copied together."""
        used = self._chunk_bytes
        for index, tensor in enumerate(self.tensors):
            size = tensor.numel() * tensor.element_size()
            begin, alone = 0, size > self._chunk_bytes // SMALL
            if alone or used + size > self._chunk_bytes:
                used = self._chunk_bytes
            while begin < size:
                if used == self._chunk_bytes:
                    self._pieces.append([])
                    used = 0
                end = min(size, begin + self._chunk_bytes)
                self._pieces[-1].append(Piece(index, begin, end, used))
                used = (
                    self._chunk_bytes if alone else min(self._chunk_bytes, -(-(used + size) // ALIGNMENT) * ALIGNMENT)
                )
                begin = end

    def __len__(self) -> int:
        return len(self._pieces)

    def size(self, chunk: int) -> int:
        """Bytes of a chunk as it travels."""
        first, last = self._pieces[chunk][0], self._pieces[chunk][-1]
        return last.offset + last.end - last.begin - first.offset

    def read(self, chunk: int) -> torch.Tensor:
        """A chunk's bytes, where its first tensor is: a look into that tensor if it is the only one, else a copy."""
        pieces = self._pieces[chunk]
        if len(pieces) == 1:
            return self._bytes(pieces[0])
        buffer = torch.zeros(self.size(chunk), dtype=torch.uint8, device=self.tensors[pieces[0].tensor].device)
        for piece in pieces:
            offset = piece.offset - pieces[0].offset
            buffer[offset : offset + piece.end - piece.begin].copy_(self._bytes(piece))
        return buffer

    def place(self, chunk: int) -> torch.Tensor:
        """Where to receive a chunk: the tensor's own memory if it is the only one, else a buffer for `write`.

        Only for contiguous tensors.
        """
        pieces = self._pieces[chunk]
        return self._bytes(pieces[0]) if len(pieces) == 1 else torch.empty(self.size(chunk), dtype=torch.uint8)

    def write(self, chunk: int, raw: torch.Tensor) -> None:
        """Put a received chunk into the tensors, if it is not there already."""
        pieces = self._pieces[chunk]
        if len(pieces) == 1:
            return
        for piece in pieces:
            offset = piece.offset - pieces[0].offset
            self._bytes(piece).copy_(raw[offset : offset + piece.end - piece.begin])

    def checksum(self) -> int:
        """Of everything."""
        return combined([checksum(self.read(chunk)) for chunk in range(len(self))])

    def _bytes(self, piece: Piece) -> torch.Tensor:
        tensor = self.tensors[piece.tensor]
        if not tensor.is_contiguous():
            if self._plain is None or self._plain[0] != piece.tensor:
                self._plain = (piece.tensor, tensor.contiguous())
            tensor = self._plain[1]
        return tensor.detach().view(-1).view(torch.uint8)[piece.begin : piece.end]


class Blank(NamedTuple):
    """A tensor that travels apart from the structure."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Blank:
        """What there is to say of a tensor."""
        return cls(tensor.dtype, tuple(tensor.shape))

    def empty(self) -> torch.Tensor:
        """Memory for it, on the CPU."""
        return torch.empty(self.shape, dtype=self.dtype)


@dataclass(frozen=True)
class Packed:
    """A state taken apart: `structure` (bytes), the shared tensors, and the tensors that are the worker's own.

    `signature` is the same on two workers exactly if their shared parts are laid out alike.
    """

    structure: bytes
    signature: int
    shared: Chunks
    own: Sequence[torch.Tensor]


def pack(state: Any, shared: Sequence[tuple[str, torch.Tensor]]) -> Packed:
    """Take a state apart.  `shared`: named tensors in it that all peers hold alike.  Copies no tensor."""
    shared = sorted(shared, key=lambda item: (item[1].nbytes > CHUNK_BYTES // SMALL, item[1].numel() > 1, item[0]))
    file = io.BytesIO()
    pickle.dump([Blank.of(tensor) for _, tensor in shared], file)
    pickler = _TensorsOut(file, {_key(tensor): index for index, (_, tensor) in enumerate(shared)})
    pickler.dump(state)
    chunks = Chunks([tensor for _, tensor in shared])
    layout = [(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in shared]
    hashed = hashlib.sha256(repr((CHUNK_BYTES, layout)).encode()).digest()
    return Packed(file.getvalue(), int.from_bytes(hashed[:8], "little", signed=True), chunks, pickler.own)


def blanks_of(structure: bytes) -> list[Blank]:
    """The shared tensors that a structure speaks of."""
    blanks: list[Blank] = pickle.Unpickler(io.BytesIO(structure)).load()
    return blanks


def unpack(structure: bytes, shared: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """The state around `shared`, and its own tensors, which are still to be filled."""
    file = io.BytesIO(structure)
    pickle.Unpickler(file).load()
    unpickler = _TensorsIn(file, shared)
    state = unpickler.load()
    return state, [unpickler.own[index] for index in sorted(unpickler.own)]


def shared_tensors(registered: Mapping[str, Any], packed: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """What all peers hold alike, by name: parameters of registered modules, and the state of torch's optimizers.

    `packed`: what the registered objects' `state_dict` said.  Memory that has two names is told once.
    """
    seen = set()
    for name in sorted(registered):
        for path, value in _tensors_of(registered[name], packed.get(name)):
            tensor = part_of(value)
            if is_plain(tensor) and _key(tensor) not in seen:
                seen.add(_key(tensor))
                yield f"{name}/{path}", tensor.detach()


def _tensors_of(value: Any, packed: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.nn.Module):
        yield from sorted(value.named_parameters())
    elif isinstance(value, torch.optim.Optimizer) and isinstance(packed, dict):
        for index, entries in sorted(packed.get("state", {}).items(), key=lambda item: str(item[0])):
            if isinstance(entries, dict):
                yield from ((f"{index}/{key}", entries[key]) for key in sorted(entries, key=str))


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor whose bytes are all there is to it."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided and value.numel() > 0


def _key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Names a tensor's memory."""
    return tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride()


class _TensorsOut(pickle.Pickler):
    """Pickles everything but plain tensors."""

    def __init__(self, file: io.BytesIO, shared: Mapping[tuple[Any, ...], int]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._shared = shared
        self.own: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> Any:
        if not is_plain(obj):
            return None
        index = self._shared.get(_key(obj))
        if index is not None:
            return ("shared", index)
        self.own.append(obj.detach())
        return ("own", len(self.own) - 1, Blank.of(obj))


class _TensorsIn(pickle.Unpickler):
    """Puts the shared tensors in, and an empty one for each of the others."""

    def __init__(self, file: io.BytesIO, shared: Sequence[torch.Tensor]) -> None:
        super().__init__(file)
        self._shared = shared
        self.own: dict[int, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "shared":
            return self._shared[pid[1]]
        _, index, blank = pid
        if index not in self.own:
            self.own[index] = blank.empty()
        return self.own[index]

"""Brings peers that have lost their state, or never had one, to the state of their coordinate, over the data group.

All peers that hold the state share the work: each sends other chunks of what they hold alike, to one receiver after
the other.  The rest, which is small, comes from the first of them (`packing`).  Every chunk carries a checksum.  What a
receiver has verified it keeps when the generation breaks, and in the next one it asks for what is missing.  Peers trust
each other: the data plane is not authenticated (README, "What it does not do").
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from reknit.rendezvous.records import Version
from reknit.runtime.errors import Interrupted
from reknit.runtime.recovery.checksum import checksum, combined
from reknit.runtime.recovery.packing import Chunks, Packed, blanks_of, unpack

MESSAGE_BYTES = 16 * 2**20  # of what is not shared
BATCH = 4  # chunks, whose checksums come together
ROUNDS = 8  # a chunk that comes damaged so often is not sent again in this generation
_HEADER = 3  # words: signature, bytes of the structure, how many chunks
_PRIVATE_TAG, _SUMS_TAG, _CHUNK_TAG = 0, 1, 2  # the last one plus the chunk's number


class Waitable(Protocol):
    """A message under way."""

    def wait(self) -> None:
        """Until it has arrived, or may be changed; raises Interrupted."""


class Wire(Protocol):
    """What healing needs of a communicator."""

    rank: int
    size: int
    name: str

    def isend(self, tensor: torch.Tensor, destination: int, tag: int = 0) -> Waitable:
        """Send; raises Interrupted."""

    def irecv(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Waitable:
        """Receive into `tensor`; raises Interrupted."""

    def follow(self, works: Sequence[Any]) -> None:
        """These messages will be waited for, in this order."""

    def all_gather_into_tensor(self, output: torch.Tensor, tensor: torch.Tensor) -> object:
        """Everybody's tensor, one after another; raises Interrupted."""


Reach = Callable[[str], None]  # reach(phase): a named point for tests


class Shipment(NamedTuple):
    """One chunk's way."""

    source: int
    receiver: int
    chunk: int


def share_out(
    missing: Mapping[int, Sequence[int]], sources: Sequence[int], failed: dict[tuple[int, int], int]
) -> list[Shipment]:
    """Who sends which chunk to whom, in the order in which it is done.  Pure: every peer comes to the same.

    `missing`: chunks by receiver.  `failed`: who sent (receiver, chunk) in vain the last time: then it is the next
    source's turn.  At any moment the receivers are served by different sources, each as far as the others.
    """
    shipments = []
    for position in range(max(map(len, missing.values()), default=0)):
        for turn, (receiver, chunks) in enumerate(sorted(missing.items())):
            if position >= len(chunks):
                continue
            chunk = chunks[position]
            before = failed.get((receiver, chunk))
            choice = position + turn if before is None else sources.index(before) + 1
            shipments.append(Shipment(sources[choice % len(sources)], receiver, chunk))
    return shipments


@dataclass
class Partial:
    """What a receiver has verified of a state: chunks of the shared part of one version, laid out by `signature`."""

    version: Version
    signature: int
    chunks: Chunks
    have: set[int] = field(default_factory=set)

    @property
    def bytes(self) -> int:
        """How much that is."""
        return sum(self.chunks.size(chunk) for chunk in self.have)


@dataclass
class Received:
    """A whole state, and what it took: `bytes` came now, `kept` in earlier generations; from which ranks, and which of
    them sent chunks that were `damaged`."""

    state: Any
    bytes: int
    kept: int
    sources: set[int]
    damaged: list[int]
    seconds: float


class Exchange:
    """One healing within one data group.  All its members make one, if anybody there needs a state.

    `sources` and `receivers` are data ranks: those that hold the state, and those that need it; together they are all.
    """

    def __init__(self, wire: Wire, sources: Sequence[int], receivers: Sequence[int], reach: Reach) -> None:
        self._wire, self._sources, self._receivers, self._reach = wire, list(sources), sorted(receivers), reach
        self._lead = self._sources[0]
        self._helpers: list[int] = []
        self._count = 0
        self._failed: dict[tuple[int, int], int] = {}

    # ---------------------------------------------------------------- the two sides

    def serve(self, packed: Packed) -> int:
        """Send, until no receiver misses anything; returns the bytes sent.  Raises Interrupted."""
        structure = torch.frombuffer(bytearray(packed.structure), dtype=torch.uint8)
        self._agree([packed.signature, structure.numel(), len(packed.shared)])
        total = 0
        if self._wire.rank == self._lead:
            for receiver in self._receivers:
                total += self._send_private(structure, packed.own, receiver)
        self._reach("heal")
        for _ in range(ROUNDS):
            shipments = self._round([])
            if not shipments:
                return total
            total += self._send([s for s in shipments if s.source == self._wire.rank], packed.shared)
        raise self._hopeless()

    def be_served(self, version: Version, partial: Partial | None, keep: Callable[[Partial], None]) -> Received:
        """Receive a whole state; nothing of the worker's own is touched.  Raises Interrupted.

        `keep` is told at once what will hold the verified chunks, whatever happens afterwards.
        """
        begun = time.monotonic()
        signature, size, _ = self._agree([0, 0, 0])
        structure = torch.empty(size, dtype=torch.uint8)
        private = _Inbox(self._wire, self._lead)
        private.take(structure)
        blanks = blanks_of(structure.numpy().tobytes())
        if partial is None or (partial.version, partial.signature) != (version, signature):
            partial = Partial(version, signature, Chunks([blank.empty() for blank in blanks]))
        keep(partial)
        state, own = unpack(structure.numpy().tobytes(), partial.chunks.tensors)
        for tensor in own:
            private.take(tensor.view(-1).view(torch.uint8))
        if not private.verified():
            raise self._broken(f"what rank {self._lead} sent came damaged")
        self._reach("be healed")
        received = Received(state, private.bytes, partial.bytes, {self._lead}, [], 0.0)
        for _ in range(ROUNDS):
            missing = [chunk for chunk in range(len(partial.chunks)) if chunk not in partial.have]
            shipments = self._round(missing)
            if not shipments:
                received.seconds = time.monotonic() - begun
                return received
            self._receive(shipments, partial, received)
        raise self._hopeless()

    # ---------------------------------------------------------------- what all do together

    def _agree(self, mine: Sequence[int]) -> list[int]:
        """Decide who helps the first source: those whose state is laid out alike.  Returns that source's header."""
        rows = torch.empty(self._wire.size * _HEADER, dtype=torch.int64)
        self._wire.all_gather_into_tensor(rows, torch.tensor(mine, dtype=torch.int64))
        offers: list[list[int]] = rows.view(-1, _HEADER).tolist()
        header = offers[self._lead]
        self._helpers = [rank for rank in self._sources if offers[rank][0] == header[0]]
        self._count = header[2]
        return header

    def _round(self, mine: Sequence[int]) -> list[Shipment]:
        """Say which chunks this receiver misses, hear what all others do, and share it out."""
        bits = torch.zeros(max(1, self._count), dtype=torch.uint8)
        bits[list(mine)] = 1
        table = torch.empty(self._wire.size * bits.numel(), dtype=torch.uint8)
        self._wire.all_gather_into_tensor(table, bits)
        rows = table.view(-1, bits.numel())
        missing = {rank: rows[rank].nonzero().flatten().tolist() for rank in self._receivers}
        shipments = share_out(missing, self._helpers, self._failed)
        self._failed = {(s.receiver, s.chunk): s.source for s in shipments}
        return shipments

    # ---------------------------------------------------------------- chunks

    def _send(self, shipments: Sequence[Shipment], chunks: Chunks) -> int:
        """One batch is on its way while the next one's checksums are made."""
        under_way = list[tuple[Waitable, torch.Tensor]]()
        sums: dict[int, int] = {}
        total = 0
        try:
            for number, batch in enumerate(_batches(shipments)):
                raws = [_on_cpu(chunks.read(shipment.chunk)) for shipment in batch]
                sums |= {s.chunk: checksum(raw) for s, raw in zip(batch, raws, strict=True) if s.chunk not in sums}
                before = len(under_way)
                for receiver in sorted({shipment.receiver for shipment in batch}):
                    words = torch.tensor([sums[s.chunk] for s in batch if s.receiver == receiver])
                    under_way.append((self._wire.isend(words, receiver, _SUMS_TAG), words))
                for shipment, raw in zip(batch, raws, strict=True):
                    under_way.append((self._wire.isend(raw, shipment.receiver, _CHUNK_TAG + shipment.chunk), raw))
                    total += raw.numel()
                self._wire.follow([work for work, _ in under_way[before:]])
                for work, _ in under_way[:before]:
                    work.wait()
                del under_way[:before]
                if 2 * BATCH * (number + 1) >= len(shipments):
                    self._reach("heal halfway")
            for work, _ in under_way:
                work.wait()
        except Interrupted:
            for work, _ in under_way:  # all fail within moments; until then their memory is in use
                with contextlib.suppress(Interrupted):
                    work.wait()
            raise
        return total

    def _receive(self, shipments: Sequence[Shipment], partial: Partial, received: Received) -> None:
        """As the sources send; two batches of each are under way."""
        batches = [_batches([s for s in shipments if s.source == source]) for source in self._helpers]
        plan = collections.deque[list[Shipment]]()
        for at_once in itertools.zip_longest(*batches, fillvalue=[]):
            plan.extend(mine for batch in at_once if (mine := [s for s in batch if s.receiver == self._wire.rank]))
        coming = collections.deque[_Coming]()
        try:
            while plan or coming:
                while plan and len(coming) < 2 * len(self._helpers):
                    coming.append(self._expect(plan.popleft(), partial.chunks))
                self._take(coming[0], partial, received)
                coming.popleft()
        except Interrupted:
            for batch in coming:  # what has come whole is kept
                with contextlib.suppress(Interrupted):
                    self._take(batch, partial, received, to_the_end=True)
            raise

    def _expect(self, batch: Sequence[Shipment], chunks: Chunks) -> _Coming:
        source, words = batch[0].source, torch.zeros(len(batch), dtype=torch.int64)
        raws = [chunks.place(shipment.chunk) for shipment in batch]
        works = [self._wire.irecv(words, source, _SUMS_TAG)]
        works += [
            self._wire.irecv(raw, source, _CHUNK_TAG + shipment.chunk)
            for shipment, raw in zip(batch, raws, strict=True)
        ]
        self._wire.follow(works)
        return _Coming(source, words, raws, works, batch)

    def _take(self, coming: _Coming, partial: Partial, received: Received, to_the_end: bool = False) -> None:
        """Verify what comes.  `to_the_end`: the generation is over, but later chunks may have come."""
        coming.works[0].wait()
        for shipment, raw, work, expected in zip(
            coming.batch, coming.raws, coming.works[1:], coming.sums.tolist(), strict=True
        ):
            if shipment.chunk in partial.have:
                continue
            try:
                work.wait()
            except Interrupted:
                if to_the_end:
                    continue
                raise
            received.bytes += raw.numel()
            received.sources.add(coming.source)
            if checksum(raw) != expected:
                received.damaged.append(coming.source)
                continue
            partial.chunks.write(shipment.chunk, raw)
            partial.have.add(shipment.chunk)
            if 2 * len(partial.have) >= len(partial.chunks):
                self._reach("be healed halfway")

    # ---------------------------------------------------------------- what is not shared

    def _send_private(self, structure: torch.Tensor, own: Sequence[torch.Tensor], receiver: int) -> int:
        total, sums = 0, []
        for tensor in (structure, *own):
            raw = _on_cpu(tensor.contiguous().view(-1).view(torch.uint8))
            for part in raw.split(MESSAGE_BYTES):
                sums.append(checksum(part))
                self._wire.isend(part, receiver, _PRIVATE_TAG).wait()
                total += part.numel()
        self._wire.isend(torch.tensor([combined(sums)]), receiver, _PRIVATE_TAG).wait()
        return total

    def _hopeless(self) -> Interrupted:
        return self._broken(f"chunks of the state came damaged {ROUNDS} times in a row")

    def _broken(self, what: str) -> Interrupted:
        return Interrupted(
            f"healing in {self._wire.name}, rank {self._wire.rank} of {self._wire.size}: {what}. Meet anew.",
            group=self._wire.name,
            rank=self._wire.rank,
        )


class _Coming(NamedTuple):
    """A batch under way: the first of `works` brings `sums`, the others the chunks."""

    source: int
    sums: torch.Tensor
    raws: Sequence[torch.Tensor]
    works: Sequence[Waitable]
    batch: Sequence[Shipment]


def _batches(shipments: Sequence[Shipment]) -> list[Sequence[Shipment]]:
    """What one source sends in one go, of all that it sends."""
    return [shipments[first : first + BATCH] for first in range(0, len(shipments), BATCH)]


class _Inbox:
    """What comes from the first source alone, with one checksum over it all at the end."""

    def __init__(self, wire: Wire, source: int) -> None:
        self._wire, self._source, self._sums, self.bytes = wire, source, list[int](), 0

    def take(self, raw: torch.Tensor) -> None:
        for part in raw.split(MESSAGE_BYTES):
            self._wire.irecv(part, self._source, _PRIVATE_TAG).wait()
            self._sums.append(checksum(part))
            self.bytes += part.numel()

    def verified(self) -> bool:
        word = torch.zeros(1, dtype=torch.int64)
        self._wire.irecv(word, self._source, _PRIVATE_TAG).wait()
        return int(word.item()) == combined(self._sums)


def _on_cpu(raw: torch.Tensor) -> torch.Tensor:
    """The same bytes in memory that gloo can send from; pinned if they come from a CUDA device."""
    if raw.device.type == "cpu":
        return raw
    buffer = torch.empty(raw.shape, dtype=raw.dtype, pin_memory=raw.device.type == "cuda")
    return buffer.copy_(raw)

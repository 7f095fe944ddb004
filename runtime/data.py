"""Which samples a step uses, and which of them this replica works on.

Losing a worker must neither lose nor repeat a sample, whatever number of replicas is left.  So nothing here is
remembered: the samples of step s are a pure function of (seed, s), cut into the same V micro-batches whoever is there
to compute them, and a replica's share is a pure function of (V, number of replicas, index of the replica).  Every epoch
visits every sample once, in an order of its own that is computed position by position, so that a data set of any length
costs no memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, overload

import numpy
import torch
from numpy.typing import NDArray

from reknit.rendezvous.errors import ReknitError

_Words: TypeAlias = NDArray[numpy.uint64]
_ROUNDS = 8
_BLOCK = 2048  # positions that are permuted together


class DataError(ReknitError, ValueError):
    """Sizes that cannot be dealt: a sampler refuses them when it is built, before any training."""


class View(Protocol):
    """What the sampler needs to know of the job, and what the job wants to know of the sampler."""

    @property
    def replicas(self) -> int:
        """How many replicas share the present attempt."""

    @property
    def replica(self) -> int:
        """This replica's index among them, dense from 0."""

    def begin_shard(self, indices: Sequence[int], is_last: bool) -> None:
        """Called with the sample indices of each shard before it is handed out; may raise to end the attempt early."""

    def consumed(self, indices: Sequence[int]) -> None:
        """Called with the sample indices once the training loop has worked on them."""


@dataclass(frozen=True, eq=False)
class Shard(Sequence[int]):
    """One micro-batch of this replica's share.  Index a tensor, an array or a data set with it as it is.

    `indices` is a LongTensor of shape (micro_batch,); `weight` is micro_batch / global_batch, so that the sum of
    mean loss × weight over all shards of all replicas is the mean loss over the global batch.  `is_last`: no other one
    follows in this step, on this replica.
    """

    indices: torch.Tensor
    weight: float
    is_last: bool = False

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: int | slice) -> int | list[int]:
        chosen: Any = self.indices[position].tolist()
        return chosen  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self.indices)


@dataclass(frozen=True, eq=False)
class Batch:
    """This replica's whole share of a step, for a pipeline that cuts it into micro-batches itself.

    `indices` is a LongTensor of shape (micro_batches × micro_batch,), micro-batch after micro-batch; `weight` is what
    the mean loss of each micro-batch counts in the global batch, as in `Shard`.
    """

    indices: torch.Tensor
    micro_batches: int
    weight: float

    def __len__(self) -> int:
        return len(self.indices)


def deal(micro_batches: int, replicas: int, index: int) -> range:
    """The micro-batches that replica `index` of `replicas` computes: a contiguous run, of V / replicas or one more.

    Raises:
        DataError: if `index` is not one of the replicas, or there are more replicas than micro-batches.
    """
    if not 0 <= index < replicas:
        raise DataError(f"replica {index} has no share: there are {replicas} replicas, counted from 0")
    if micro_batches < replicas:
        raise DataError(
            f"{micro_batches} micro-batches cannot be dealt to {replicas} replicas, since each needs one: "
            "raise global_batch, lower micro_batch, or allow fewer replicas"
        )
    return range(micro_batches * index // replicas, micro_batches * (index + 1) // replicas)


def permute(positions: NDArray[numpy.int64], length: int, seed: int, epoch: int) -> NDArray[numpy.int64]:
    """Map positions in an epoch to sample indices: a permutation of range(length) that (seed, epoch) chooses.

    `positions` holds integers in range(length), of any shape; the result is int64 of the same shape.
    """
    bits = (length - 1).bit_length()
    low, high = bits // 2, bits - bits // 2
    digest = hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
    keys = numpy.frombuffer(digest, "<u8").astype(numpy.uint64)
    values = _shuffle(positions.astype(numpy.uint64), low, high, keys)
    # The shuffle permutes range(2 ** bits), which is less than twice too large.  Following a value that fell outside
    # until it comes back inside visits each sample once, because the way back from any inside value is unique too.
    while (outside := values >= length).any():
        values[outside] = _shuffle(values[outside], low, high, keys)
    return values.astype(numpy.int64)


def _shuffle(values: _Words, low: int, high: int, keys: _Words) -> _Words:
    """A Feistel network over (low + high)-bit numbers: every round can be undone, so it permutes."""
    right, left = values & numpy.uint64((1 << low) - 1), values >> numpy.uint64(low)
    right_mask, left_mask = numpy.uint64((1 << low) - 1), numpy.uint64((1 << high) - 1)
    for number, key in enumerate(keys):
        if number % 2:
            right ^= _mix(left + key) & right_mask
        else:
            left ^= _mix(right + key) & left_mask
    shuffled: _Words = (left << numpy.uint64(low)) | right
    return shuffled


def _mix(values: _Words) -> _Words:
    """Spread every input bit over all 64 (the finalizer of splitmix64; arithmetic wraps)."""
    values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    mixed: _Words = values ^ (values >> numpy.uint64(31))
    return mixed


class Sampler:
    """Deals the samples of each step to whatever replicas there are.

    Args:
        length: the number of samples of the data set.
        global_batch: samples in a step of the whole job; never changes, whatever happens to the replicas.
        micro_batch: samples in one shard; global_batch / micro_batch micro-batches make a step.
        seed: chooses the order; the same seed gives the same samples at the same step, on any number of replicas.
        view: the present replicas, and who is told what was consumed.
        max_replicas: the most replicas that the job may ever have; each of them must get a micro-batch.

    Raises:
        DataError: if a size is below one, micro_batch does not divide global_batch, or a step has fewer micro-batches
            than max_replicas.
    """

    def __init__(
        self, length: int, global_batch: int, micro_batch: int, seed: int, view: View, max_replicas: int = 1
    ) -> None:
        for name, size in (("length", length), ("global_batch", global_batch), ("micro_batch", micro_batch)):
            if size < 1:
                raise DataError(f"{name} is {size}: a sampler needs at least one")
        if global_batch % micro_batch:
            raise DataError(
                f"global_batch {global_batch} is not a multiple of micro_batch {micro_batch}: "
                "a step is a whole number of micro-batches, so change one of them"
            )
        if max_replicas > global_batch // micro_batch:
            raise DataError(
                f"the job may have {max_replicas} replicas, but a step has only {global_batch // micro_batch} "
                f"micro-batches ({global_batch} samples, {micro_batch} each): "
                "raise global_batch, lower micro_batch, or allow fewer replicas"
            )
        self.length = length
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.seed = seed
        self._view = view
        self._known: tuple[tuple[int, int], NDArray[numpy.int64]] = (-1, -1), numpy.empty(0, numpy.int64)

    @property
    def micro_batches(self) -> int:
        """V: how many micro-batches make one step of the whole job."""
        return self.global_batch // self.micro_batch

    @property
    def weight(self) -> float:
        """What the mean loss of one micro-batch counts in the mean over the global batch."""
        return self.micro_batch / self.global_batch

    def samples(self, step: int) -> tuple[int, ...]:
        """All sample indices of `step`, over all replicas, micro-batch after micro-batch."""
        return tuple(self._indices(step, range(self.micro_batches)).tolist())

    def shards(self, step: int) -> Iterator[Shard]:
        """This replica's micro-batches of `step`, one by one.

        A shard counts as consumed when the loop comes back for the next one.
        """
        share = deal(self.micro_batches, self._view.replicas, self._view.replica)
        parts = torch.from_numpy(self._indices(step, share)).view(len(share), self.micro_batch)
        for number, indices in enumerate(parts, start=1):
            is_last = number == len(parts)
            self._view.begin_shard(indices.tolist(), is_last)
            yield Shard(indices, self.weight, is_last)
            self._view.consumed(indices.tolist())

    def batch(self, step: int) -> Batch:
        """This replica's whole share of `step` at once.  It counts as consumed: a pipeline runs all of it or fails."""
        share = deal(self.micro_batches, self._view.replicas, self._view.replica)
        indices = torch.from_numpy(self._indices(step, share))
        self._view.begin_shard(indices.tolist(), is_last=True)
        self._view.consumed(indices.tolist())
        return Batch(indices, len(share), self.weight)

    def _indices(self, step: int, micro_batches: range) -> NDArray[numpy.int64]:
        """The sample indices of some consecutive micro-batches of `step`.  Steps run on over the ends of epochs."""
        first = step * self.global_batch
        # Python's integers: a long job over a short data set may count more positions than 64 bits hold.
        start, stop = first + micro_batches.start * self.micro_batch, first + micro_batches.stop * self.micro_batch
        parts = []
        while start < stop:
            epoch, offset = divmod(start, self.length)
            block, skip = divmod(offset, _BLOCK)
            known = self._block(epoch, block)[skip : skip + stop - start]
            parts.append(known)
            start += len(known)
        return numpy.concatenate(parts)

    def _block(self, epoch: int, block: int) -> NDArray[numpy.int64]:
        """The sample indices of `_BLOCK` consecutive positions of an epoch (fewer at its end).

        Remembered, since a step uses few of them and a call of `permute` costs nearly the same for few as for many.
        """
        if self._known[0] != (epoch, block):
            positions = numpy.arange(block * _BLOCK, min((block + 1) * _BLOCK, self.length))
            self._known = (epoch, block), permute(positions, self.length, self.seed, epoch)
        return self._known[1]

"""Reduces gradients over the data group, bucket by bucket, while the backward pass still runs.

Why not DistributedDataParallel: it rebuilds its buckets after a rank's first backward, in the order in which that
rank's gradients came.  A newcomer would reduce its first step in other buckets than the survivors, and gloo ends the
process when sizes differ.  Here the buckets are a pure function of the parameter list, the same on every rank at every
step, and the same code serves a pipeline stage, whose gradients are reduced once after the schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from reknit.rendezvous.errors import ReknitError
from reknit.runtime.sharding import like, local

BUCKET_BYTES = 25 * 2**20  # as torch's DistributedDataParallel
FIRST_BUCKET_BYTES = 2**20  # the first one is ready early: start to communicate early


class SecondBackwardError(ReknitError):
    """Gradients were still added after their reduction had begun."""


class Pending(Protocol):
    """A collective in flight."""

    def wait(self) -> object:
        """Block until it is done; raises Interrupted."""


class Summer(Protocol):
    """What the reduction needs of a communicator."""

    @property
    def size(self) -> int:
        """How many ranks."""

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", *, asynchronous: bool = False) -> Pending | None:
        """Sum in place over the ranks."""


@dataclass(eq=False)
class Bucket:
    """Parameters that are reduced together: of a sharded one, this worker's part.

    `flat` holds their gradients one after another, then one number per parameter: how many ranks have a gradient of it.
    So a parameter that no rank used keeps no gradient, and one that only some ranks used gets it on all of them.
    """

    parameters: list[torch.nn.Parameter]
    flat: torch.Tensor = field(init=False)
    views: list[torch.Tensor] = field(init=False)
    counts: torch.Tensor = field(init=False)
    waiting: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        first = self.parameters[0]
        parts = [local(p) for p in self.parameters]
        total = sum(part.numel() for part in parts)
        self.flat = torch.zeros(total + len(self.parameters), dtype=first.dtype, device=first.device)
        self.counts = self.flat[total:]
        pieces = self.flat[:total].split([part.numel() for part in parts])
        self.views = [piece.view_as(part) for piece, part in zip(pieces, parts, strict=True)]

    def fill(self) -> None:
        """Copy the gradients in; zeros where there is none."""
        present = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        if len(present) < len(self.parameters):
            self.flat.zero_()
        grads = [_dense(self.parameters[i].grad) for i in present]
        if present:
            torch._foreach_copy_([self.views[i] for i in present], grads)
        self.counts.zero_()
        self.counts[torch.tensor(present, dtype=torch.long, device=self.flat.device)] = 1

    def hand_back(self) -> None:
        """Make the sums the parameters' gradients, without a copy."""
        used = self.counts.tolist()
        for parameter, view, count in zip(self.parameters, self.views, used, strict=True):
            parameter.grad = like(parameter, view) if count else None


def _dense(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient.to_dense() if gradient.is_sparse else local(gradient)


def make_buckets(parameters: Iterable[torch.nn.Parameter]) -> list[Bucket]:
    """Buckets in reverse order of the parameters, which is about the order in which backward produces gradients."""
    return [Bucket(group) for group in _groups([p for p in parameters if p.requires_grad][::-1])]


def _groups(parameters: Sequence[torch.nn.Parameter]) -> Iterator[list[torch.nn.Parameter]]:
    group: list[torch.nn.Parameter] = []
    filled, limit = 0, FIRST_BUCKET_BYTES
    for p in parameters:
        other = group and (p.dtype != group[0].dtype or p.device != group[0].device)
        if other or (group and filled >= limit):
            yield group
            group, filled, limit = [], 0, BUCKET_BYTES
        group.append(p)
        filled += local(p).nbytes
    if group:
        yield group


class Reduction:
    """The gradient reduction of one set of parameters.

    With `overlap`, each parameter's gradient is watched: as soon as a bucket is complete in the armed backward pass it
    is reduced.  `finish` does what is left and waits.  Buckets always go out in the same order on every rank.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], overlap: bool) -> None:
        self.buckets = make_buckets(parameters)
        self._summer: Summer | None = None
        self._armed = False
        self._next = 0
        self._pending: list[Pending] = []
        self.error: Exception | None = None
        self._home = {id(p): (b, i) for b in self.buckets for i, p in enumerate(b.parameters)}
        for parameter in self.parameters() if overlap else ():
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """All parameters, in bucket order."""
        return (p for bucket in self.buckets for p in bucket.parameters)

    def begin(self, summer: Summer) -> None:
        """A new attempt: nothing of an earlier one is left."""
        self._summer, self._armed, self._next, self._pending, self.error = summer, False, 0, [], None
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.grad = None

    def arm(self, last_backward: bool) -> None:
        """Say whether the next backward pass is the attempt's last: only then are its gradients complete."""
        self._armed = last_backward
        if last_backward:
            for bucket in self.buckets:
                bucket.waiting = set(range(len(bucket.parameters)))

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        # Never raise into autograd: an error is kept for `finish`.
        if not self._armed or self.error is not None or self._summer is None or self._summer.size == 1:
            return
        bucket, i = self._home[id(parameter)]
        if i not in bucket.waiting:
            self.error = SecondBackwardError(
                "a parameter got a gradient twice in the backward passes of one attempt's last shard: add the losses "
                "up and call backward once a shard"
            )
            return
        bucket.waiting.discard(i)
        try:
            while self._next < len(self.buckets) and not self.buckets[self._next].waiting:
                self._launch()
        except Exception as error:
            self.error = error

    def _launch(self) -> None:
        assert self._summer is not None
        bucket = self.buckets[self._next]
        self._next += 1
        bucket.fill()
        work = self._summer.all_reduce(bucket.flat, "sum", asynchronous=True)
        if work is not None:
            self._pending.append(work)

    def finish(self) -> None:
        """Reduce what has not gone out yet, wait, and make the sums the gradients.  Raises Interrupted."""
        assert self._summer is not None
        self._armed = False
        if self._summer.size == 1:
            return
        try:
            if self.error is not None:
                raise self.error
            while self._next < len(self.buckets):
                self._launch()
            for work in self._pending:
                work.wait()
        finally:
            self._pending, self.error = [], None
        for bucket in self.buckets:
            bucket.hand_back()

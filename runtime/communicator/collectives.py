"""The operations of a communicator: their arguments' checks, and how each is put to gloo.

Apart from the communicator because none of this knows how a group is built, broken or ended.  Everything that can be
checked at this rank alone is checked before anything is sent, since gloo aborts the process on a size that differs from
the peers'.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from reknit.runtime.communicator.staging import Staged, stage, stage_all
from reknit.runtime.errors import CommunicatorError

if TYPE_CHECKING:
    from reknit.runtime.communicator.work import Work

REDUCE_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    # gloo of older torch versions has no average: the sum is divided here.
    "avg": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
REDUCIBLE = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int8,
        torch.uint8,
    }
)
Backend = Any
"""A `dist.ProcessGroupGloo`, of whose operations torch's own type stubs know nothing."""

Launch = Callable[[Backend], dist.Work]
Finish = Callable[[], None]


class Collectives(ABC):
    """All collectives and point-to-point operations, in terms of `_start`.

    Each blocks, or with `asynchronous=True` returns at once; it returns a `Work` either way.  Tensors may be on any
    device and need not be contiguous.  Operations with lists want `size` tensors of one dtype.  `Interrupted`
    if the group breaks, `CommunicatorError` for arguments that cannot be right.
    """

    rank: int
    size: int
    name: str

    @abstractmethod
    def _start(
        self,
        operation: str,
        launch: Launch,
        *,
        finish: Finish | None = None,
        alone: Finish | None = None,
        asynchronous: bool = False,
        peer: int | None = None,
    ) -> Work:
        """Launch on the group, or run `alone` in a group of one; `finish` runs in the first wait that succeeds."""

    def barrier(self, *, asynchronous: bool = False) -> Work:
        """Wait until every rank has come here."""
        return self._start("barrier", lambda backend: backend.barrier(), asynchronous=asynchronous)

    def send(self, tensor: torch.Tensor, destination: int, tag: int = 0) -> Work:
        """Send to one rank; returns when the tensor may be changed again."""
        return self._send(tensor, destination, tag, asynchronous=False)

    def isend(self, tensor: torch.Tensor, destination: int, tag: int = 0) -> Work:
        """`send`, without waiting.  Until it has completed the tensor must not be changed."""
        return self._send(tensor, destination, tag, asynchronous=True)

    def recv(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Work:
        """Receive from one rank what it sends under this tag: the same shape and dtype."""
        return self._recv(tensor, source, tag, asynchronous=False)

    def irecv(self, tensor: torch.Tensor, source: int, tag: int = 0) -> Work:
        """`recv`, without waiting."""
        return self._recv(tensor, source, tag, asynchronous=True)

    def broadcast(self, tensor: torch.Tensor, source: int, *, asynchronous: bool = False) -> Work:
        """Every rank's tensor becomes that of `source`."""
        self._check_rank("broadcast", source)
        staged = stage("broadcast", tensor, copy_in=self.rank == source)
        options = dist.BroadcastOptions()
        options.rootRank = source
        return self._start(
            "broadcast",
            lambda backend: backend.broadcast([staged.working], options),
            finish=staged.bring_back,
            asynchronous=asynchronous,
        )

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum", *, asynchronous: bool = False) -> Work:
        """Every rank's tensor becomes the reduction of all: `sum`, `avg`, `product`, `min` or `max`, elementwise."""
        reduce_op = self._reduce_op("all_reduce", op, tensor)
        staged = stage("all_reduce", tensor)
        options = dist.AllreduceOptions()
        options.reduceOp = reduce_op
        return self._start(
            "all_reduce",
            lambda backend: backend.allreduce([staged.working], options),
            finish=self._average_then_bring_back(op, staged),
            asynchronous=asynchronous,
        )

    def reduce(self, tensor: torch.Tensor, destination: int, op: str = "sum", *, asynchronous: bool = False) -> Work:
        """The tensor of `destination` becomes the reduction of all; elsewhere its contents are undefined afterwards."""
        reduce_op = self._reduce_op("reduce", op, tensor)
        self._check_rank("reduce", destination)
        staged = stage("reduce", tensor)
        options = dist.ReduceOptions()
        options.reduceOp, options.rootRank = reduce_op, destination
        return self._start(
            "reduce",
            lambda backend: backend.reduce([staged.working], options),
            finish=self._average_then_bring_back(op, staged),
            asynchronous=asynchronous,
        )

    def gather(
        self,
        tensor: torch.Tensor,
        outputs: Sequence[torch.Tensor] | None,
        destination: int,
        *,
        asynchronous: bool = False,
    ) -> Work:
        """At `destination`, `outputs[r]` becomes rank r's tensor; all others pass None."""
        self._check_rank("gather", destination)
        self._check_list_at("gather", outputs, destination, like=tensor)
        source = stage("gather", tensor)
        targets = stage_all("gather", outputs or [], copy_in=False)
        options = dist.GatherOptions()
        options.rootRank = destination
        working = [[target.working for target in targets]] if targets else []
        return self._start(
            "gather",
            lambda backend: backend.gather(working, [source.working], options),
            finish=_bring_all_back(targets),
            alone=lambda: _copy(targets[0].working, tensor),
            asynchronous=asynchronous,
        )

    def scatter(
        self,
        tensor: torch.Tensor,
        inputs: Sequence[torch.Tensor] | None,
        source: int,
        *,
        asynchronous: bool = False,
    ) -> Work:
        """Rank r's tensor becomes `inputs[r]` of `source`; all others pass None."""
        self._check_rank("scatter", source)
        self._check_list_at("scatter", inputs, source, like=tensor)
        sources = stage_all("scatter", inputs or [])
        target = stage("scatter", tensor, copy_in=False)
        options = dist.ScatterOptions()
        options.rootRank = source
        working = [[one.working for one in sources]] if sources else []
        return self._start(
            "scatter",
            lambda backend: backend.scatter([target.working], working, options),
            finish=target.bring_back,
            alone=lambda: _copy(target.working, sources[0].working),
            asynchronous=asynchronous,
        )

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, asynchronous: bool = False) -> Work:
        """`outputs[r]` becomes rank r's tensor, at every rank."""
        self._check_list("all_gather", outputs, like=tensor)
        source, targets = stage("all_gather", tensor), stage_all("all_gather", outputs, copy_in=False)
        return self._start(
            "all_gather",
            lambda backend: backend.allgather([[target.working for target in targets]], [source.working]),
            finish=_bring_all_back(targets),
            alone=lambda: _copy(targets[0].working, tensor),
            asynchronous=asynchronous,
        )

    def all_gather_into_tensor(self, output: torch.Tensor, tensor: torch.Tensor, *, asynchronous: bool = False) -> Work:
        """`output`, of `size` times the elements, becomes all ranks' tensors one after the other."""
        self._check_same_dtype("all_gather_into_tensor", [output, tensor])
        if output.numel() != self.size * tensor.numel():
            raise self._refusal(
                "all_gather_into_tensor",
                f"output has {output.numel()} elements, not {self.size} times the tensor's {tensor.numel()}",
            )
        source = stage("all_gather_into_tensor", tensor)
        target = stage("all_gather_into_tensor", output, copy_in=False)
        return self._start(
            "all_gather_into_tensor",
            lambda backend: backend._allgather_base(target.working.view(-1), source.working.view(-1)),
            finish=target.bring_back,
            alone=lambda: _copy(target.working, tensor.reshape(output.shape)),
            asynchronous=asynchronous,
        )

    def reduce_scatter(
        self, output: torch.Tensor, inputs: Sequence[torch.Tensor], op: str = "sum", *, asynchronous: bool = False
    ) -> Work:
        """Rank r's `output` becomes the reduction of all ranks' `inputs[r]`."""
        reduce_op = self._reduce_op("reduce_scatter", op, output)
        self._check_list("reduce_scatter", inputs, like=output)
        sources = stage_all("reduce_scatter", inputs)
        target = stage("reduce_scatter", output, copy_in=False)
        options = dist.ReduceScatterOptions()
        options.reduceOp = reduce_op
        return self._start(
            "reduce_scatter",
            lambda backend: backend.reduce_scatter([target.working], [[one.working for one in sources]], options),
            finish=self._average_then_bring_back(op, target),
            alone=lambda: _copy(target.working, sources[0].working),
            asynchronous=asynchronous,
        )

    def all_to_all(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], *, asynchronous: bool = False
    ) -> Work:
        """`outputs[r]` becomes rank r's `inputs[this rank]`.  Sizes may differ from pair to pair."""
        self._check_list("all_to_all", outputs)
        self._check_list("all_to_all", inputs)
        self._check_same_dtype("all_to_all", [*outputs, *inputs])
        sent = torch.cat([one.detach().reshape(-1).to("cpu") for one in inputs])
        received = torch.empty(sum(one.numel() for one in outputs), dtype=outputs[0].dtype)
        splits = [one.numel() for one in outputs], [one.numel() for one in inputs]

        def spread() -> None:
            for output, part in zip(outputs, torch.split(received, splits[0]), strict=True):
                _copy(output, part.view(output.shape))

        return self._start(
            "all_to_all",
            lambda backend: backend.alltoall_base(received, sent, *splits),
            finish=spread,
            alone=lambda: _copy(received, sent),
            asynchronous=asynchronous,
        )

    def _send(self, tensor: torch.Tensor, destination: int, tag: int, *, asynchronous: bool) -> Work:
        self._check_peer("send", destination)
        staged = stage("send", tensor)
        return self._start(
            "send",
            lambda backend: backend.send([staged.working], destination, tag),
            asynchronous=asynchronous,
            peer=destination,
        )

    def _recv(self, tensor: torch.Tensor, source: int, tag: int, *, asynchronous: bool) -> Work:
        self._check_peer("recv", source)
        staged = stage("recv", tensor, copy_in=False)
        return self._start(
            "recv",
            lambda backend: backend.recv([staged.working], source, tag),
            finish=staged.bring_back,
            asynchronous=asynchronous,
            peer=source,
        )

    def _average_then_bring_back(self, op: str, staged: Staged) -> Finish:
        def finish() -> None:
            if op == "avg":
                staged.working.div_(self.size)
            staged.bring_back()

        return finish

    def _refusal(self, operation: str, problem: str) -> CommunicatorError:
        return CommunicatorError(f"group {self.name}, rank {self.rank} of {self.size}: {operation}: {problem}")

    def _reduce_op(self, operation: str, op: str, tensor: torch.Tensor) -> dist.ReduceOp:
        if op not in REDUCE_OPERATIONS:
            raise self._refusal(operation, f"no reduction is called {op!r}; there are {', '.join(REDUCE_OPERATIONS)}")
        if tensor.dtype not in REDUCIBLE:
            raise self._refusal(operation, f"gloo does not reduce {tensor.dtype}; convert the tensor first")
        if op == "avg" and not tensor.dtype.is_floating_point:
            raise self._refusal(operation, f"{tensor.dtype} has no average; use sum, or convert the tensor first")
        return dist.ReduceOp(REDUCE_OPERATIONS[op])

    def _check_rank(self, operation: str, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise self._refusal(operation, f"there is no rank {rank}")

    def _check_peer(self, operation: str, rank: int) -> None:
        self._check_rank(operation, rank)
        if rank == self.rank:
            raise self._refusal(operation, "a rank cannot exchange messages with itself")

    def _check_list_at(
        self, operation: str, tensors: Sequence[torch.Tensor] | None, root: int, like: torch.Tensor
    ) -> None:
        if self.rank == root:
            self._check_list(operation, tensors or [], like)
        elif tensors:
            raise self._refusal(operation, f"only rank {root} passes a list of tensors")

    def _check_list(self, operation: str, tensors: Sequence[torch.Tensor], like: torch.Tensor | None = None) -> None:
        if len(tensors) != self.size:
            raise self._refusal(operation, f"wants a list of {self.size} tensors, one a rank, not {len(tensors)}")
        if like is None:
            return
        self._check_same_dtype(operation, [like, *tensors])
        for rank, tensor in enumerate(tensors):
            if tensor.shape != like.shape:
                raise self._refusal(
                    operation, f"tensor {rank} of the list is {tuple(tensor.shape)}, not {tuple(like.shape)}"
                )

    def _check_same_dtype(self, operation: str, tensors: Sequence[torch.Tensor]) -> None:
        dtypes = {tensor.dtype for tensor in tensors}
        if len(dtypes) > 1:
            raise self._refusal(operation, f"mixes {' and '.join(sorted(map(str, dtypes)))}")


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)


def _bring_all_back(staged: Sequence[Staged]) -> Finish:
    def finish() -> None:
        for one in staged:
            one.bring_back()

    return finish

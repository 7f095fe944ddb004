"""A group that torch accepts everywhere, whose members change: all its operations act on the present communicator.

A subclass of torch's own ProcessGroup, entered in torch's registers by hand: so that collectives of torch.distributed,
functional collectives, DistributedDataParallel and device meshes take it, and keep it over every change of members.

An operation that a change of members ends raises `Interrupted` in the wait for it; so does every operation after it
until the next generation.  But nothing is raised into a backward pass, which DistributedDataParallel would not survive:
within an attempt, an operation that fails there leaves its tensors undefined, and the attempt's `commit` raises.  A
future (`get_future`) always completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from reknit.runtime.communicator.collectives import Collectives
from reknit.runtime.communicator.work import Work
from reknit.runtime.errors import CommunicatorError, Interrupted

Tensors = Sequence[torch.Tensor]

_ProcessGroup: Any = dist.ProcessGroup
"""Any to the type checker: torch's stubs have other signatures for these methods in each version."""

REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


_unwanted: list[bool] = []  # not empty: see `unwanted`


@contextmanager
def unwanted() -> Iterator[None]:
    """Whatever is waited for in this block is dropped: its failure is no news."""
    _unwanted.append(True)
    try:
        yield
    finally:
        _unwanted.pop()


class Present(Protocol):
    """Where the group's operations go."""

    def communicator(self) -> Collectives:
        """The present one; Interrupted if there is none at the moment."""

    def place(self) -> tuple[int, int]:
        """Rank and size at present, or when last there was a communicator.  Never blocks."""

    def pass_over(self, error: Interrupted) -> bool:
        """Whether this failure may be passed over now, as it will be raised before anything is made of the results."""


class Operation(dist.Work):
    """torch's handle on what has been started: one or several works of a communicator."""

    def __init__(self, present: Present, start: Callable[[Collectives], Sequence[Work]], result: Any = None) -> None:
        super().__init__()
        self._present, self._result = present, result
        self._works: list[Work] = []
        self._failure: Interrupted | None = None
        try:
            self._works = list(start(present.communicator()))
        except Interrupted as error:
            error.__traceback__ = None
            self._failure = error

    def wait(self, timeout: Any = None) -> bool:
        """Block until all is done.  Raises Interrupted.  A timeout is not heeded: it is the group that ends a wait."""
        try:
            if self._failure is not None:
                raise self._failure.renewed()
            for work in self._works:
                work.wait()
        except Interrupted as error:
            if not (_unwanted or (_in_backward() and self._present.pass_over(error))):
                raise
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return or raise at once."""
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the result.  It completes if the group breaks, too: see this module.

        So outside of an attempt it does not tell of a failure, as `wait` does: an exception in a future of Python's
        crashes the process where DistributedDataParallel's reducer, which is C++, waits for it.
        """
        result: torch.futures.Future[Any] = torch.futures.Future()
        left = len(self._works)
        if not left:
            result.set_result(self._result)
        if self._failure is not None:
            self._present.pass_over(self._failure)

        def one_is_over(one: torch.futures.Future[Any]) -> None:
            nonlocal left
            try:
                one.value()
            except Interrupted as error:
                self._present.pass_over(error)
            left -= 1
            if left == 0:
                result.set_result(self._result)

        for work in self._works:
            work.future().add_done_callback(one_is_over)
        return result


class ElasticGroup(_ProcessGroup):  # type: ignore[misc]
    """See this module.  Ranks are those in the group; `name` is torch's name for it, the same in all processes.

    `across_replicas`: whether its members are of different replicas, or of one.
    """

    def __init__(self, name: str, present: Present, *, across_replicas: bool = True) -> None:
        super().__init__(0, 1)
        self._reknit_name, self._present, self.across_replicas = name, present, across_replicas

    # What it is.  C++ asks by one name, Python by another.

    def rank(self) -> int:
        """This worker's rank in the group."""
        return self._present.place()[0]

    def size(self) -> int:
        """How many members there are."""
        return self._present.place()[1]

    def getRank(self) -> int:  # noqa: D102, N802
        return self.rank()

    def getSize(self) -> int:  # noqa: D102, N802
        return self.size()

    def name(self) -> str:
        """The backend's name: not gloo's, of which torch would then look for the object."""
        return "reknit"

    def getBackendName(self) -> str:  # noqa: D102, N802
        return self.name()

    @property
    def group_name(self) -> str:
        """torch's name for the group."""
        return self._reknit_name

    @property
    def group_desc(self) -> str:
        """A description."""
        return f"{self._reknit_name}, whose members change"

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def shutdown(self) -> None:
        """Nothing: what a generation has built ends with it."""

    def abort(self) -> None:
        """Nothing, likewise."""

    def _start(self, start: Callable[[Collectives], Sequence[Work]], result: Any = None) -> Operation:
        return Operation(self._present, start, result)

    # Operations, by the names that torch calls them by.

    def allreduce(self, tensors: Any, opts: Any = None) -> Operation:  # noqa: D102
        tensors, op = _listed(tensors), _reduction(opts)
        return self._start(lambda now: [now.all_reduce(one, op, asynchronous=True) for one in tensors], tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Operation:  # noqa: D102
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None, **_: Any) -> Operation:  # noqa: D102
        tensors, root = _listed(tensors), _root(opts)
        return self._start(lambda now: [now.broadcast(one, root, asynchronous=True) for one in tensors], tensors)

    def reduce(self, tensors: Any, opts: Any = None, **_: Any) -> Operation:  # noqa: D102
        tensors, root, op = _listed(tensors), _root(opts), _reduction(opts)
        return self._start(lambda now: [now.reduce(one, root, op, asynchronous=True) for one in tensors], tensors)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Operation:  # noqa: D102
        pairs = list(zip(outputs, inputs, strict=True))
        return self._start(lambda now: [now.all_gather(out, one, asynchronous=True) for out, one in pairs], outputs)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Operation:  # noqa: D102
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Operation:  # noqa: D102
        pairs = list(zip(outputs, inputs, strict=True))
        return self._start(
            lambda now: [now.all_gather_into_tensor(out, one, asynchronous=True) for out, one in pairs], outputs
        )

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Operation:  # noqa: D102
        targets, root = outputs[0] if outputs else None, _root(opts)
        return self._start(lambda now: [now.gather(inputs[0], targets, root, asynchronous=True)], outputs)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Operation:  # noqa: D102
        sources, root = inputs[0] if inputs else None, _root(opts)
        return self._start(lambda now: [now.scatter(outputs[0], sources, root, asynchronous=True)], outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Operation:  # noqa: D102
        op, pairs = _reduction(opts), list(zip(outputs, inputs, strict=True))
        return self._start(
            lambda now: [now.reduce_scatter(out, parts, op, asynchronous=True) for out, parts in pairs], outputs
        )

    def reduce_scatter_single(  # noqa: D102
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> Operation:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(  # noqa: D102
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> Operation:
        pairs = zip(outputs, inputs, strict=True)
        return self.reduce_scatter(outputs, [_parts(one, like=out) for out, one in pairs], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Operation:  # noqa: D102
        return self._start(lambda now: [now.all_to_all(outputs, inputs, asynchronous=True)], outputs)

    def all_to_all_single(  # noqa: D102
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        opts: Any = None,
    ) -> Operation:
        def start(now: Collectives) -> list[Work]:
            outputs, inputs = _split(output, output_split_sizes, now.size), _split(tensor, input_split_sizes, now.size)
            return [now.all_to_all(outputs, inputs, asynchronous=True)]

        return self._start(start, output)

    def barrier(self, opts: Any = None) -> Operation:  # noqa: D102
        return self._start(lambda now: [now.barrier(asynchronous=True)])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:  # noqa: D102
        self.barrier().wait()

    def send(self, tensors: Tensors, destination: int, tag: int) -> Operation:  # noqa: D102
        return self._start(lambda now: [now.isend(tensors[0], destination, tag)])

    def recv(self, tensors: Tensors, source: int, tag: int) -> Operation:  # noqa: D102
        return self._start(lambda now: [now.irecv(tensors[0], source, tag)])

    def recv_anysource(self, tensors: Tensors, tag: int) -> Operation:  # noqa: D102
        raise CommunicatorError(f"{self._reknit_name}: a message from anybody cannot be interrupted; name its source")

    # As older versions of torch call some of these.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def register(group: ElasticGroup, ranks: Mapping[int, int]) -> None:
    """Enter a group in torch's registers, or enter other members: `ranks` are torch's numbers → ranks in the group.

    Whoever destroys torch's default group strikes out all others: so this is done anew with each formation.
    """
    world = distributed_c10d._world
    world.pg_group_ranks[group] = dict(sorted(ranks.items(), key=lambda pair: pair[1]))
    if group in world.pg_map:
        return
    name: Any = group.group_name
    tag = f"ptd:{name}"
    world.pg_map[group] = ("gloo", dist.HashStore())
    world.pg_names[group] = name
    world.pg_backend_config[group] = "cpu:gloo"
    world.pg_to_tag[group] = tag
    world.tags_to_pg.setdefault(tag, []).append(group)
    distributed_c10d._register_process_group(name, group)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _listed(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _reduction(opts: Any) -> str:
    wanted = getattr(opts, "reduceOp", opts)
    if wanted is None:
        return "sum"
    for name, operation in REDUCTIONS.items():
        if wanted == operation:
            return name
    raise CommunicatorError(f"no reduction of this group is {wanted}; there are {', '.join(REDUCTIONS)}")


def _root(opts: Any) -> int:
    return int(getattr(opts, "rootRank", opts or 0))


def _parts(tensor: torch.Tensor, like: torch.Tensor) -> list[torch.Tensor]:
    return [part.view(like.shape) for part in tensor.contiguous().view(-1).split(like.numel())]


def _split(tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[torch.Tensor]:
    if sizes:
        return list(tensor.split(list(sizes)))
    if tensor.shape[0] % ranks:
        raise CommunicatorError(f"{tensor.shape[0]} rows cannot be dealt to {ranks} ranks alike; give the sizes")
    return list(tensor.split(tensor.shape[0] // ranks))

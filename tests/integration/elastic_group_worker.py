"""A process for test_elastic_group: one of two members, of whom the second dies.  Prints what it found as JSON.

elastic_group_worker.py RANK MEETING_PORT
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.parallel import DistributedDataParallel

from reknit.runtime.communicator.collectives import Collectives
from reknit.runtime.communicator.communicator import Communicator
from reknit.runtime.communicator.paired import Paired
from reknit.runtime.elastic_group import ElasticGroup, register
from reknit.runtime.errors import Interrupted

torch.set_num_threads(1)
rank, port = int(sys.argv[1]), int(sys.argv[2])
found: dict[str, Any] = {}


class Present:
    def __init__(self) -> None:
        self.now: Collectives = Communicator(None, name="data", rank=0, size=1)
        self.watched = True
        self.passed_over = 0

    def communicator(self) -> Collectives:
        return self.now

    def place(self) -> tuple[int, int]:
        return self.now.rank, self.now.size

    def pass_over(self, error: Interrupted) -> bool:
        self.passed_over += self.watched
        return self.watched


def connect(generation: int, ranks: int = 2) -> Communicator:
    return Communicator.connect(("127.0.0.1", port), f"g{generation}", rank, ranks, timeout_s=20, hostname="127.0.0.1")


def own(value: float, count: int = 2) -> torch.Tensor:
    return torch.full((count,), float(value))


def outcome(action: Callable[[], Any]) -> str:
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "done"


present = Present()
group = ElasticGroup("reknit_data", present)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
register(group, {0: 0})

# Made while this process is alone in the group, as by a script that has just started.
parallel = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False), process_group=group, find_unused_parameters=True)
mesh = DeviceMesh.from_group(
    [group, dist.group.WORLD],  # type: ignore[list-item]  # torch's own may be None to the checker
    "cpu",
    mesh=torch.tensor([[0]]),
    mesh_dim_names=("replicate", "shard"),
)
sharded = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False))
fully_shard(sharded, mesh=mesh)


def ddp_gradient() -> list[float]:
    parallel.zero_grad()
    parallel(own(rank + 1).unsqueeze(0)).sum().backward()
    gradient = parallel.module.weight.grad
    assert gradient is not None
    values: list[float] = gradient[0].tolist()
    return values


def fsdp_gradient() -> list[float]:
    sharded.zero_grad()
    sharded(own(rank + 1).unsqueeze(0)).sum().backward()
    gradient = next(sharded.parameters()).grad
    assert isinstance(gradient, DTensor)
    return gradient.to_local()[0].tolist()


def collectives(group: Any) -> None:
    """All of torch.distributed's, by their results."""

    def after(operation: Callable[..., Any], *tensors: torch.Tensor, **more: Any) -> list[float]:
        operation(*tensors, group=group, **more)
        return tensors[0].tolist()

    found["all_reduce"] = after(dist.all_reduce, own(rank + 1))
    found["all_reduce max"] = after(dist.all_reduce, own(rank + 1), op=dist.ReduceOp.MAX)
    found["all_reduce avg"] = after(dist.all_reduce, own(rank + 1), op=dist.ReduceOp.AVG)
    found["broadcast"] = after(dist.broadcast, own(rank), group_src=1)
    found["broadcast by torch's number"] = after(dist.broadcast, own(rank), src=1 if rank == 0 else 0)
    found["reduce"] = after(dist.reduce, own(rank + 1), group_dst=0)
    found["all_gather_into_tensor"] = after(dist.all_gather_into_tensor, torch.empty(4), own(rank))
    found["reduce_scatter_tensor"] = after(dist.reduce_scatter_tensor, torch.empty(1), torch.tensor([1.0, 2.0]))
    found["all_to_all_single"] = after(dist.all_to_all_single, torch.empty(2), torch.tensor([rank * 2.0, rank + 5.0]))
    lists = [torch.empty(2), torch.empty(2)]
    dist.all_gather(lists, own(rank), group=group)
    found["all_gather"] = [one.tolist() for one in lists]
    dist.all_to_all(lists, [own(10 * rank), own(10 * rank + 1)], group=group)
    found["all_to_all"] = [one.tolist() for one in lists]
    output = torch.empty(2)
    dist.reduce_scatter(output, [own(1), own(2)], group=group)
    found["reduce_scatter"] = output.tolist()
    dist.gather(own(rank), lists if rank == 0 else None, group=group, group_dst=0)
    found["gather"] = [one.tolist() for one in lists] if rank == 0 else None
    dist.scatter(output, [own(3), own(4)] if rank == 0 else None, group=group, group_src=0)
    found["scatter"] = output.tolist()
    if rank == 0:
        dist.send(own(7), group=group, group_dst=1)
    else:
        dist.recv(output, group=group, group_src=0)
    found["recv"] = output.tolist()
    work = dist.all_reduce(output, group=group, async_op=True)
    assert work is not None
    found["asynchronous"] = [work.wait(), work.is_completed()]
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    found["objects"] = objects
    dist.barrier(group=group)
    found["anybody"] = outcome(lambda: dist.recv(output, group=group))


def functionals() -> None:
    found["functional"] = [
        (functional.all_reduce(own(rank + 1), "sum", group) + 0).tolist(),
        (functional.all_gather_tensor(own(rank, 1), 0, group) + 0).tolist(),
        (functional.reduce_scatter_tensor(torch.tensor([1.0, 2.0]), "sum", 0, group) + 0).tolist(),
    ]
    line = DeviceMesh.from_group(group, "cpu")
    partial = DTensor.from_local(own(rank + 1), line, [Partial()])
    found["mesh"] = [line.size(), line.get_local_rank(), partial.redistribute(line, [Replicate()]).to_local().tolist()]


def ends() -> None:
    """A product of two groups, of which one is of this process alone."""
    alone = Communicator(None, name="ends", rank=0, size=1)
    before = present.now
    for name, pair in (("outer", Paired(before, alone)), ("inner", Paired(alone, before))):
        present.now = pair
        summed, gathered, sent = own(rank + 1), [torch.empty(2), torch.empty(2)], own(rank)
        dist.all_reduce(summed, group=group)
        dist.all_gather(gathered, own(rank), group=group)
        dist.broadcast(sent, group=group, group_src=1)
        dist.barrier(group=group)
        found[f"paired {name}"] = [summed.tolist(), [one.tolist() for one in gathered], sent.tolist(), group.rank()]
    found["paired refuses"] = outcome(lambda: dist.send(own(1), group=group, group_dst=1 - rank))
    present.now = before


found["alone"] = [group.size(), ddp_gradient(), fsdp_gradient()]
present.now = connect(1)
register(group, {0: rank, 1: 1 - rank})
found["who"] = [group.rank(), dist.get_rank(group), dist.get_world_size(group), dist.get_process_group_ranks(group)]
collectives(group)
functionals()
ends()
found["ddp"] = [ddp_gradient(), ddp_gradient()]
found["fsdp"] = fsdp_gradient()
present.now.barrier()
if rank == 1:
    print(json.dumps(found), flush=True)
    os._exit(0)

# The other one is dead.
found["nothing raised into backward"] = []
for gradient in (ddp_gradient, ddp_gradient, fsdp_gradient):
    present.passed_over = 0
    found["nothing raised into backward"].append([outcome(gradient), present.passed_over > 0])
found["afterwards"] = [
    outcome(lambda: dist.all_reduce(own(1), group=group)),
    outcome(lambda: functional.all_reduce(own(1), "sum", group) + 0),
    outcome(lambda: dist.barrier(group=group)),
]
present.watched = False


def parallel_once() -> None:
    other = DistributedDataParallel(
        torch.nn.Linear(2, 1), process_group=group, init_sync=False, find_unused_parameters=True
    )
    other(own(1).unsqueeze(0)).sum().backward()


found["nobody would tell"] = outcome(parallel_once)
present.watched = True
present.now.close()
present.now = Communicator(None, name="data", rank=0, size=1)
register(group, {0: 0})
found["the next generation"] = [ddp_gradient(), fsdp_gradient(), dist.get_process_group_ranks(group)]
found["same object"] = mesh.get_group("replicate") is group

# A formation ends, and another one begins.
dist.destroy_process_group()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
register(group, {0: 0})
found["the next formation"] = [outcome(lambda: dist.all_reduce(own(1), group=group)), ddp_gradient()]
print(json.dumps(found), flush=True)

"""A loop as code for `comm_utils` has it: communicators out of arguments, made anew before each step.

Each step logs what the accessors and the communicators say, and that what has to be refused is, with nothing changed.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.distributed as dist
from tests.faults import problem
from tests.faults.following import Orders
from torch.nn import functional

import reknit
from reknit.rendezvous.errors import LayoutError
from reknit.runtime import mpu
from reknit.runtime.errors import BackendRefused

STAGES = 2

orders = Orders()
points, answers = problem.dataset()
job = reknit.join()
model = torch.nn.Sequential(*(problem.part(stage) for stage in range(problem.STAGES)))
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
args = SimpleNamespace(
    world_size=0, rank=0, pipeline_group_size=STAGES, data_group_size=0, dp_backend="gloo", dist_url="tcp://nowhere:1"
)
mpu.init_communicators(args)
comm, ends = mpu.get_data_parallel_comm(), mpu.get_io_parallel_group()
pipelines: list[object] = []


def summed(group: dist.ProcessGroup) -> float:
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return one.item()


def refused(mistake: type[Exception], **changes: object) -> bool:
    """Whether a reinit with other arguments is refused, and leaves everything as it is."""
    before = job.generation, job.recovery.groups, mpu.get_data_parallel_comm()
    try:
        mpu.reinit_dp_communicator(SimpleNamespace(**{**vars(args), **changes}))
    except mistake:
        return (job.generation, job.recovery.groups, mpu.get_data_parallel_comm()) == before
    return False


while orders.go_on(job.step):
    mpu.reinit_dp_communicator(args)
    nccl, size = refused(BackendRefused, dp_backend="nccl"), refused(LayoutError, pipeline_group_size=STAGES + 1)
    with job.attempt() as attempt:
        pipeline = mpu.get_pipeline_parallel_comm()
        if pipeline not in pipelines:
            pipelines.append(pipeline)
        for shard in data.shards(job.step):
            (functional.mse_loss(model(points[shard]), answers[shard]) * shard.weight).backward()
        source = torch.tensor([float(args.rank)])
        dist.broadcast(source, src=mpu.get_data_parallel_src_rank(), group=comm)
        job.log(
            same=comm is mpu.get_data_parallel_comm() and ends is mpu.get_io_parallel_group(),
            world=args.world_size,
            rank=args.rank,
            replicas=args.data_group_size,
            place=mpu.get_data_parallel_rank(),
            size=mpu.get_data_parallel_world_size(),
            torch_place=dist.get_rank(comm),
            torch_size=dist.get_world_size(comm),
            stage=mpu.get_pipeline_parallel_rank(),
            source=source.item(),
            summed=summed(comm),
            summed_ends=summed(ends),
            summed_pipeline=summed(pipeline),
            pipelines=len(pipelines),
            nccl_refused=nccl,
            size_refused=size,
        )
        attempt.commit(optimizer, scheduler)

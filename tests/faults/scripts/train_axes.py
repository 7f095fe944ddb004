"""Pipe x model x data: every worker says what the groups along each axis sum up to, before and after changes.

The model is the same at every coordinate; torch's DistributedDataParallel reduces it over the job's data group.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from tests.faults import problem
from tests.faults.following import Orders
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import reknit
from reknit.runtime import mpu

orders = Orders()
points, answers = problem.dataset()
job = reknit.join()
inner = torch.nn.Sequential(*(problem.part(stage) for stage in range(problem.STAGES)))
model = DistributedDataParallel(inner, process_group=job.data_group, find_unused_parameters=True)
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
mpu.initialize_model_parallel(
    job.model_size, mpu.PipeModelDataParallelTopology(job.pipeline_size, job.model_size, num_dp=7)
)
meshes: dict[int, dist.ProcessGroup] = {}  # by formation, the model group of a mesh that torch makes over the replica


def summed(group: dist.ProcessGroup) -> float:
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value, group=group)
    return value.item()


def meshed() -> dist.ProcessGroup:
    formation = job.recovery.formation
    assert formation is not None
    if formation.serial not in meshes:
        made = init_device_mesh("cpu", (job.pipeline_size, job.model_size), mesh_dim_names=("pipe", "model"))
        meshes[formation.serial] = made.get_group("model")
    return meshes[formation.serial]


while orders.go_on(job.step):
    with job.attempt() as attempt:
        total = 0.0
        for shard in data.shards(job.step):
            with nullcontext() if shard.is_last else model.no_sync():
                loss = functional.mse_loss(model(points[shard]), answers[shard]) * shard.weight
                (loss * job.replicas).backward()
                total += loss.item()
        pipe, tensor = mpu.get_pipe_parallel_group(), mpu.get_model_parallel_group()
        source = torch.tensor([float(job.rank)])
        dist.broadcast(source, src=mpu.get_model_parallel_src_rank(), group=tensor)
        job.log(
            loss=total,
            rank=job.rank,
            pipe=mpu.get_pipe_parallel_rank(),
            model=mpu.get_tensor_model_parallel_rank(),
            summed_pipe=summed(pipe),
            summed_model=summed(tensor),
            summed_mesh=summed(meshed()),
            model_source=source.item(),
            in_ends=mpu.get_io_parallel_group() is not dist.GroupMember.NON_GROUP_MEMBER,
            state=problem.fingerprint(inner, optimizer, scheduler),
        )
        # The norm is that of all stages, and each has the same gradients here.
        limit = problem.CLIP_NORM * job.pipeline_size**0.5
        attempt.commit(optimizer, scheduler, clip_norm=limit)

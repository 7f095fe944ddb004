"""Two stages, of which the last one adds something up over the replicas in the midst of its work within the replica.

Where the test says so, one process is killed just before that, when all others wait: the last stages for it, the first
ones for their last stage.
"""

from __future__ import annotations

import os
import signal
import time

import torch
import torch.distributed as dist
from tests.faults import problem
from tests.faults.following import Orders
from torch.nn import functional

import reknit

orders = Orders()
points, answers = problem.dataset()
job = reknit.join()
model = torch.nn.Sequential(*(problem.part(stage) for stage in range(problem.STAGES)))
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
victim = orders.folder / f"{os.environ['REKNIT_WORKER_ID']}.die"


def summed(group: dist.ProcessGroup) -> float:
    one = torch.ones(1)
    dist.all_reduce(one, group=group)
    return one.item()


while orders.go_on(job.step):
    with job.attempt() as attempt:
        if job.coordinate.pipe == job.pipeline_size - 1:
            if victim.exists():
                victim.unlink()
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            job.log(replicas=summed(job.data_group))
        stages = summed(job.replica_group("pipe"))
        for shard in data.shards(job.step):
            (functional.mse_loss(model(points[shard]), answers[shard]) * shard.weight).backward()
        job.log(stages=stages)
        attempt.commit(optimizer, scheduler)

"""Data parallel: every worker is a replica."""

from __future__ import annotations

from tests.faults import problem
from tests.faults.following import Orders
from torch import nn
from torch.nn import functional

import reknit

orders = Orders()
points, answers = problem.dataset()
job = reknit.join()
model = job.data_parallel(nn.Sequential(*(problem.part(stage) for stage in range(problem.STAGES))))
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
orders.obey(job, model, optimizer)
orders.keep_checkpoints(job)

while orders.go_on(job.step):
    with job.attempt() as attempt:
        job.log(state=problem.fingerprint(model, optimizer, scheduler))
        total = 0.0
        for shard in data.shards(job.step):
            loss = functional.mse_loss(model(points[shard]), answers[shard]) * shard.weight
            loss.backward()
            total += loss.item()
        job.log(loss=total)
        attempt.commit(optimizer, scheduler, clip_norm=problem.CLIP_NORM)

"""Pipeline x data: every worker is one of two or three stages of a replica."""

from __future__ import annotations

import torch
from tests.faults import problem
from tests.faults.following import Orders
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional

import reknit
from reknit.runtime.pipeline import Share

orders = Orders()
points, answers = problem.dataset()
job = reknit.join()
stage, last = job.coordinate.pipe, job.coordinate.pipe == job.pipeline_size - 1
model = problem.part(stage, job.pipeline_size)
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
orders.obey(job, model, optimizer)
orders.keep_checkpoints(job)


def weighted_loss(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(predicted, target) * data.weight


def build(share: Share) -> ScheduleGPipe:
    part = PipelineStage(model, share.stage, share.stages, share.device, group=share.group)
    return ScheduleGPipe(part, share.micro_batches, loss_fn=weighted_loss, scale_grads=False)


pipeline = job.pipeline(build)

while orders.go_on(job.step):
    with job.attempt() as attempt:
        job.log(state=problem.fingerprint(model, optimizer, scheduler))
        batch = data.batch(job.step)
        inputs = [points[batch.indices]] if stage == 0 else []
        if last:
            losses: list[torch.Tensor] = []
            pipeline.step(*inputs, target=answers[batch.indices], losses=losses)
            job.log(loss=float(torch.stack(losses).sum()))
        else:
            pipeline.step(*inputs)
        attempt.commit(optimizer, scheduler, clip_norm=problem.CLIP_NORM)

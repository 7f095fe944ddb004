"""Data parallel with a large state; a bit of one replica's parameters flips when the test says so."""

from __future__ import annotations

import os

import torch
from tests.faults import problem
from tests.faults.following import Orders
from torch import nn
from torch.nn import functional

import reknit
from reknit.runtime.recovery import packing

packing.CHUNK_BYTES = 2**20  # many chunks
BALLAST = 12, 1024, 1024  # 48 MiB that do not train, but belong to the state

orders = Orders()
points, answers = problem.dataset()
job = reknit.join()
layers = nn.Sequential(*(problem.part(stage) for stage in range(problem.STAGES)))
model = job.data_parallel(layers)
torch.manual_seed(problem.SEED)
ballast = nn.ParameterList(nn.Parameter(torch.randn(BALLAST[1:]), requires_grad=False) for _ in range(BALLAST[0]))
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, ballast=ballast, optimizer=optimizer, scheduler=scheduler)
orders.obey(job, model, optimizer)
flip = orders.folder / f"{os.environ['REKNIT_WORKER_ID']}.flip"

while orders.go_on(job.step):
    if flip.exists():
        flip.unlink()
        with torch.no_grad():
            next(model.parameters()).view(-1).view(torch.int32)[3] ^= 1 << 7
    with job.attempt() as attempt:
        job.log(state=problem.fingerprint(model, optimizer, scheduler))
        total = 0.0
        for shard in data.shards(job.step):
            loss = functional.mse_loss(model(points[shard]), answers[shard]) * shard.weight
            loss.backward()
            total += loss.item()
        job.log(loss=total)
        attempt.commit(optimizer, scheduler, clip_norm=problem.CLIP_NORM)

"""Trains three steps, and then stays in the fourth: nothing happens any more."""

from __future__ import annotations

import time

import torch
from torch import nn

import reknit

torch.set_num_threads(1)
job = reknit.join()
model = job.data_parallel(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = job.sampler(64, global_batch=8, micro_batch=1)
job.register(model=model, optimizer=optimizer)
while True:
    with job.attempt() as attempt:
        for shard in data.shards(job.step):
            (model(torch.ones(len(shard), 8)).sum() * shard.weight).backward()
        if job.step == 3:
            with job.long_phase("idling"):
                time.sleep(3600)
        attempt.commit(optimizer)

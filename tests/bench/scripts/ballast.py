"""Data parallel; a small model trains, and a state of --state-mb MB comes along when a worker joins."""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

import reknit

TENSOR_BYTES = 16 * 10**6

parser = argparse.ArgumentParser()
parser.add_argument("--state-mb", type=int, required=True)
parser.add_argument("--step-ms", type=float, required=True)
arguments = parser.parse_args()
torch.set_num_threads(1)

job = reknit.join()
torch.manual_seed(0)
model = job.data_parallel(nn.Linear(16, 1))
count = max(1, arguments.state_mb * 10**6 // TENSOR_BYTES)
size = arguments.state_mb * 10**6 // count // 4
ballast = nn.ParameterList(nn.Parameter(torch.full((size,), 1.0 + i), requires_grad=False) for i in range(count))
optimizer = torch.optim.AdamW(model.parameters())
points = torch.randn(512, 16)
data = job.sampler(len(points), global_batch=24, micro_batch=4)
job.register(model=model, ballast=ballast, optimizer=optimizer)
while True:
    step = job.step  # a newcomer is healed here, and not in an attempt
    time.sleep(arguments.step_ms / 1000)
    with job.attempt() as attempt:
        for shard in data.shards(step):
            (model(points[shard.indices]).square().mean() * shard.weight).backward()
        attempt.commit(optimizer)

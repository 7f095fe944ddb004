"""A step of plain data parallel with a state of --state-mb MB, with checkpoints of it or without."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from tests.bench.turns import Player
from torch import nn

import reknit

TENSOR_BYTES = 4 * 10**6

parser = argparse.ArgumentParser()
parser.add_argument("--turns", type=Path, required=True)
parser.add_argument("--system", required=True)
parser.add_argument("--state-mb", type=int, required=True)
parser.add_argument("--checkpoint", type=Path)
parser.add_argument("--every", type=int, default=1)
arguments = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)

job = reknit.join()
model = job.data_parallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)))
count = max(1, arguments.state_mb * 10**6 // TENSOR_BYTES)
ballast = nn.ParameterList(
    nn.Parameter(torch.randn(arguments.state_mb * 10**6 // count // 4), requires_grad=False) for _ in range(count)
)
optimizer = torch.optim.AdamW(model.parameters())
points, answers = torch.randn(4096, 256), torch.randint(0, 10, (4096,))
data = job.sampler(len(points), global_batch=64, micro_batch=32)
job.register(model=model, ballast=ballast, optimizer=optimizer)
if arguments.checkpoint is not None:
    job.checkpoint(arguments.checkpoint, every=arguments.every)
player = Player(arguments.turns, arguments.system)
while (pad := player.step()) is not None:
    with job.attempt() as attempt:
        time.sleep(pad)
        for shard in data.shards(job.step):
            loss = nn.functional.cross_entropy(model(points[shard.indices]), answers[shard.indices]) * shard.weight
            loss.backward()
        attempt.commit(optimizer)

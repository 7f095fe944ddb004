"""Plain data parallel: a small network learns a fixed function of random points.

reknit run --standalone --replicas 3 train_ddp.py --steps 500
"""

import argparse
import time

import torch
from torch import nn

import reknit

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--step-ms", type=float, default=0, help="make each step take about this long, to measure with")
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

torch.manual_seed(arguments.seed)
points = torch.randn(10_000, 32)
answers = torch.sin(points @ torch.randn(32, 4) / 32**0.5)
network = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 4))

job = reknit.join()
model = job.data_parallel(network.to(job.device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = job.sampler(len(points), global_batch=96, micro_batch=8, seed=arguments.seed)
job.register(model=model, optimizer=optimizer)

while job.step < arguments.steps:
    with job.attempt() as attempt:
        finish = time.monotonic() + arguments.step_ms / 1000
        total = 0.0
        for shard in data.shards(job.step):
            predicted = model(points[shard].to(job.device))
            loss = nn.functional.mse_loss(predicted, answers[shard].to(job.device)) * shard.weight
            loss.backward()
            total += loss.item()
        time.sleep(max(0.0, finish - time.monotonic()))
        job.log(loss=total)
        attempt.commit(optimizer)

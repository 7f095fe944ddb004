"""A data connection breaks every few steps while both its ends live: REPLICAS workers, --glitches of them in all."""

from __future__ import annotations

import argparse

import torch
from tests.faults import problem
from torch import nn
from torch.nn import functional

import reknit

parser = argparse.ArgumentParser()
parser.add_argument("--glitches", type=int, required=True)
parser.add_argument("--every", type=int, default=2, help="steps between two glitches")
parser.add_argument("--orders", help="where this script's orders would lie: it needs none")
arguments = parser.parse_args()


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


torch.set_num_threads(1)
points, answers = problem.dataset()
job = reknit.join()
model = job.data_parallel(nn.Sequential(*(problem.part(stage) for stage in range(problem.STAGES))))
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)

broken_at = -1
while job.step < (arguments.glitches + 1) * arguments.every:
    with job.attempt() as attempt:
        step = job.step
        groups = job.recovery.groups
        if step % arguments.every == 0 and 0 < step != broken_at and job.replica == 0 and groups is not None:
            broken_at = step
            assert groups.data is not None
            groups.data.interrupt("a cable is pulled")
        for shard in data.shards(step):
            loss = functional.mse_loss(model(points[shard]), answers[shard]) * shard.weight
            loss.backward()
        job.log(rss=resident_bytes())
        attempt.commit(optimizer, scheduler, clip_norm=problem.CLIP_NORM)

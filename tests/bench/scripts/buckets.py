"""A step whose gradients take as long to reduce as backward takes: stock DistributedDataParallel, or reknit.

The model computes little and sleeps in each layer's backward, as a process does whose accelerator computes.  So the
processor is free for the reduction, and what is not overlapped shows as time.  Under reknit, a system named `…-after`
leaves `job.data_parallel` out: then `commit` reduces everything after backward.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from tests.bench.scripts.common import SAMPLES, batches, init_stock, parse, player
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reknit

LAYERS, WIDE, BATCH = 16, 1024, 4  # 67 MB of parameters: four buckets
LAYER_SECONDS = 0.008

points = torch.randn(SAMPLES, WIDE)


class Busy(torch.autograd.Function):
    """The identity, whose backward takes a while without using the processor."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(LAYER_SECONDS)
        return gradient


class Layer(nn.Module):
    """A linear layer with a slow backward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDE, WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        busy: torch.Tensor = Busy.apply(self.linear(x))  # type: ignore[no-untyped-call]
        return busy.relu()


def build() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def stock(arguments: argparse.Namespace) -> None:
    init_stock(arguments)
    model = DistributedDataParallel(build())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    shares, turns = batches(BATCH, arguments.rank, arguments.ranks), player(arguments)
    while turns.step() is not None:
        model(points[next(shares)]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def under_reknit(arguments: argparse.Namespace) -> None:
    job = reknit.join()
    model = build()
    if not arguments.system.endswith("-after"):
        job.data_parallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = job.sampler(SAMPLES, global_batch=2 * BATCH, micro_batch=BATCH)
    job.register(model=model, optimizer=optimizer)
    turns = player(arguments)
    while turns.step() is not None:
        with job.attempt() as attempt:
            for shard in data.shards(job.step):
                (model(points[shard.indices]).square().mean() * shard.weight).backward()
            attempt.commit(optimizer)


if __name__ == "__main__":
    given = parse()
    stock(given) if given.store else under_reknit(given)

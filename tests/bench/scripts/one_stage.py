"""A step of plain data parallel: under stock DistributedDataParallel, or under reknit."""

from __future__ import annotations

import argparse
import time

import torch
from tests.bench.scripts.common import SAMPLES, WIDTH, batches, init_stock, parse, player
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import reknit

BATCH = 32

points = torch.randn(SAMPLES, WIDTH)
answers = torch.randint(0, 10, (SAMPLES,))


def build() -> nn.Module:
    """About 800 kB of parameters: a step of a few milliseconds."""
    torch.manual_seed(0)
    hidden = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 10))


def stock(arguments: argparse.Namespace) -> None:
    init_stock(arguments)
    model = DistributedDataParallel(build())
    optimizer = torch.optim.AdamW(model.parameters())
    shares, turns = batches(BATCH, arguments.rank, arguments.ranks), player(arguments)
    while (pad := turns.step()) is not None:
        time.sleep(pad)
        chosen = next(shares)
        loss = nn.functional.cross_entropy(model(points[chosen]), answers[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def under_reknit(arguments: argparse.Namespace) -> None:
    job = reknit.join()
    model = job.data_parallel(build())
    optimizer = torch.optim.AdamW(model.parameters())
    data = job.sampler(SAMPLES, global_batch=2 * BATCH, micro_batch=BATCH)
    job.register(model=model, optimizer=optimizer)
    turns = player(arguments)
    while (pad := turns.step()) is not None:
        with job.attempt() as attempt:
            time.sleep(pad)
            for shard in data.shards(job.step):
                loss = nn.functional.cross_entropy(model(points[shard.indices]), answers[shard.indices]) * shard.weight
                loss.backward()
            attempt.commit(optimizer)


if __name__ == "__main__":
    chosen = parse()
    stock(chosen) if chosen.store else under_reknit(chosen)

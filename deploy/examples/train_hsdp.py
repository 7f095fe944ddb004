"""Sharded within a replica, elastic across replicas (HSDP): torch's FSDP2 inside, reknit around it.

    reknit run --standalone --replicas 2 --model 2 train_hsdp.py --steps 500

A replica is `--model` workers that share one copy of the model: each keeps a part of every parameter and of its
optimizer state, and works on its part of the replica's samples.  When a worker dies its replica is made anew, and each
part comes back from the worker of another replica that holds the same one.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import reknit

MICRO_BATCH = 8  # samples that a replica works on at a time, shared by its workers


def make_data(seed):
    """Random points, and a fixed function of them to learn."""
    torch.manual_seed(seed)
    points = torch.randn(10_000, 32)
    return points, torch.sin(points @ torch.randn(32, 4) / 32**0.5)


def make_model(seed, width):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4))


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=0, help="make each step take about this long, to measure with")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--clip", type=float, default=1.0, help="the largest norm of the whole model's gradient")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def main(arguments):
    torch.set_num_threads(1)  # the workers of a laptop share its few cores
    points, answers = make_data(arguments.seed)
    job = reknit.join()
    mesh = job.replica_mesh("model")
    model = make_model(arguments.seed, arguments.width).to(job.device)  # whole at first, and the same everywhere
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if MICRO_BATCH % job.model_size:
        raise SystemExit(f"{job.model_size} workers can't share {MICRO_BATCH} samples equally: choose another --model")
    data = job.sampler(len(points), global_batch=96, micro_batch=MICRO_BATCH, seed=arguments.seed)
    job.register(model=model, optimizer=optimizer)

    while job.step < arguments.steps:
        with job.attempt() as attempt:
            finish = time.monotonic() + arguments.step_ms / 1000
            total = torch.zeros(())
            for shard in data.shards(job.step):
                mine = shard.indices.chunk(job.model_size)[job.coordinate.model]  # of the replica's samples
                predicted = model(points[mine].to(job.device))
                loss = nn.functional.mse_loss(predicted, answers[mine].to(job.device)) * shard.weight
                loss.backward()  # FSDP2 takes the mean over the replica's workers; commit sums over the replicas
                total += loss.detach().cpu()
            dist.all_reduce(total, op=dist.ReduceOp.AVG, group=mesh.get_group())
            time.sleep(max(0.0, finish - time.monotonic()))
            job.log(loss=total)
            attempt.commit(optimizer, clip_norm=arguments.clip)


if __name__ == "__main__":
    main(parse())

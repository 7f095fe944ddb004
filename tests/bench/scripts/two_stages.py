"""A step of two pipeline stages × data parallel: the same schedule over plain gloo groups, or under reknit."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
import torch.distributed as dist
from tests.bench.scripts.common import SAMPLES, WIDTH, batches, init_stock, parse, player
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import reknit
from reknit.runtime.pipeline import Share

MICRO_BATCH, MICRO_BATCHES, STAGES = 16, 2, 2  # of each replica

points = torch.randn(SAMPLES, WIDTH)
answers = torch.randint(0, 10, (SAMPLES,))


def build(stage: int) -> nn.Module:
    """One stage: about 500 kB of parameters."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())


def weighted_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target) / (2 * MICRO_BATCHES)


def schedule_of(part: PipelineStage, micro_batches: int) -> Any:
    return ScheduleGPipe(part, micro_batches, loss_fn=weighted_loss, scale_grads=False)


def run(schedule: Any, stage: int, chosen: torch.Tensor) -> None:
    """The schedule's step with this stage's inputs."""
    if stage == 0:
        schedule.step(points[chosen])
    else:
        schedule.step(target=answers[chosen], losses=[])


def reduce_by_hand(model: nn.Module, group: Any) -> None:
    """Sum the gradients over the replicas in one flat tensor."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat, group=group)
    for gradient, piece in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(piece.view_as(gradient))


def stock(arguments: argparse.Namespace) -> None:
    init_stock(arguments)
    replica, stage = divmod(arguments.rank, STAGES)
    replicas = arguments.ranks // STAGES
    pipes = [dist.new_group([r * STAGES + s for s in range(STAGES)]) for r in range(replicas)]
    columns = [dist.new_group([r * STAGES + s for r in range(replicas)]) for s in range(STAGES)]
    model = build(stage)
    optimizer = torch.optim.AdamW(model.parameters())
    part = PipelineStage(model, stage, STAGES, torch.device("cpu"), group=pipes[replica])
    schedule = schedule_of(part, MICRO_BATCHES)
    shares, turns = batches(MICRO_BATCH * MICRO_BATCHES, replica, replicas), player(arguments)
    while (pad := turns.step()) is not None:
        time.sleep(pad)
        run(schedule, stage, next(shares))
        reduce_by_hand(model, columns[stage])
        optimizer.step()
        optimizer.zero_grad()


def under_reknit(arguments: argparse.Namespace) -> None:
    job = reknit.join()
    stage = job.coordinate.pipe
    model = build(stage)
    optimizer = torch.optim.AdamW(model.parameters())
    data = job.sampler(SAMPLES, global_batch=2 * MICRO_BATCHES * MICRO_BATCH, micro_batch=MICRO_BATCH)
    job.register(model=model, optimizer=optimizer)

    def build_schedule(share: Share) -> Any:
        part = PipelineStage(model, share.stage, share.stages, share.device, group=share.group)
        return schedule_of(part, share.micro_batches)

    pipeline, turns = job.pipeline(build_schedule), player(arguments)
    while (pad := turns.step()) is not None:
        with job.attempt() as attempt:
            time.sleep(pad)
            run(pipeline, stage, data.batch(job.step).indices)
            attempt.commit(optimizer)


if __name__ == "__main__":
    given = parse()
    stock(given) if given.store else under_reknit(given)

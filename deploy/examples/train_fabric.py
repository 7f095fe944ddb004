"""A loop of Lightning Fabric on elastic replicas: the strategy below is all that connects the two.

    pip install lightning-fabric
    reknit run --standalone --replicas 3 train_fabric.py --steps 500

A strategy is Fabric's own way to say where training runs.  This one lets the loop's `optimizer.step()` commit the job's
step: gradients are reduced over the replicas, everybody votes, then optimizer, schedule and scaler step.

Its limits: replicas of one worker (no --pipe, no --model).  One module and one optimizer, and `optimizer.step()` comes
last in the attempt.  The schedule goes into `fabric.setup`, and nobody calls its `step`.  `clip_gradients` takes
`max_norm` with the 2-norm, works at the next `optimizer.step()`, and returns nothing.  Samples come from `job.sampler`,
not from `setup_dataloaders`.  `fabric.all_reduce` (sum, mean, max, min) and `fabric.barrier` are for an attempt;
`fabric.all_gather` is refused, `fabric.broadcast` gives back what it gets, `fabric.global_rank` is always 0 (there is
`job.rank`); checkpoints are the job's (`job.checkpoint`), not `fabric.save`.
"""

import argparse
import time

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.single_device import SingleDeviceStrategy
from torch import nn

import reknit

OPERATIONS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "avg": dist.ReduceOp.SUM}
OPERATIONS |= {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


class Elastic(SingleDeviceStrategy):
    """One worker of a job; `attempt` is the one under way."""

    attempt = None

    def __init__(self, job):
        super().__init__(device=job.device)
        self.job, self.schedule, self.max_norm = job, None, None

    def setup_module_and_optimizers(self, module, optimizers, scheduler=None):
        self.schedule = scheduler
        (optimizer,) = optimizers
        objects = {"model": module, "optimizer": optimizer, "schedule": scheduler, "scaler": self.scaler}
        self.job.data_parallel(module)
        self.job.register(**{name: value for name, value in objects.items() if value is not None})
        return module, optimizers, scheduler

    @property
    def scaler(self):
        """What mixed precision with 16 bits multiplies the loss by."""
        return getattr(self.precision, "scaler", None)

    def clip_gradients_norm(self, module, optimizer, max_norm, norm_type=2.0, error_if_nonfinite=True):
        if norm_type != 2:
            raise ValueError("only the 2-norm is one sum over all workers")
        self.max_norm = max_norm  # the gradients are whole only once they are reduced

    def optimizer_step(self, optimizer, **_):
        limit, self.max_norm = self.max_norm, None
        self.attempt.commit(optimizer, self.schedule, clip_norm=limit, scaler=self.scaler)

    def clip_gradients_value(self, module, optimizer, clip_val):
        raise NotImplementedError("gradients are whole only once commit has reduced them: clip by max_norm")

    def all_reduce(self, tensor, group=None, reduce_op="mean"):
        if reduce_op not in OPERATIONS:
            raise ValueError(f"reduce_op={reduce_op!r}: it must be one of {', '.join(OPERATIONS)}")
        dist.all_reduce(tensor, OPERATIONS[reduce_op], group=self.job.data_group)
        return tensor / self.job.replicas if reduce_op in ("mean", "avg") else tensor

    def all_gather(self, *_, **__):
        raise NotImplementedError("replicas come and go: use torch.distributed.all_gather over job.data_group")

    def barrier(self, *_, **__):
        dist.barrier(group=self.job.data_group)


# From here on it is a loop as any other of Fabric's, around the job's attempts and samples.


def make_data(seed):
    """Random points, and a fixed function of them to learn."""
    torch.manual_seed(seed)
    points = torch.randn(10_000, 32)
    return points, torch.sin(points @ torch.randn(32, 4) / 32**0.5)


def make_model(seed, width):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4))


def make_schedule(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.95)


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=0, help="make each step take about this long, to measure with")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--clip", type=float, default=1.0, help="the largest norm of the whole model's gradient")
    parser.add_argument("--precision", default="32-true", help="as Fabric names it: 16-mixed, bf16-mixed, …")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def main(arguments):
    torch.set_num_threads(1)  # the workers of a laptop share its few cores
    points, answers = make_data(arguments.seed)
    job = reknit.join()
    strategy = Elastic(job)
    fabric = Fabric(accelerator=job.device.type, strategy=strategy, precision=arguments.precision)
    network = make_model(arguments.seed, arguments.width)
    adamw = torch.optim.AdamW(network.parameters(), lr=3e-3)
    model, optimizer, _ = fabric.setup(network, adamw, scheduler=make_schedule(adamw))
    data = job.sampler(len(points), global_batch=96, micro_batch=8, seed=arguments.seed)

    while job.step < arguments.steps:
        with job.attempt() as strategy.attempt:
            finish = time.monotonic() + arguments.step_ms / 1000
            total = torch.zeros(())
            for shard in data.shards(job.step):
                predicted = model(points[shard].to(fabric.device))
                loss = nn.functional.mse_loss(predicted, answers[shard].to(fabric.device)) * shard.weight
                fabric.backward(loss)
                total += loss.detach().cpu()
            time.sleep(max(0.0, finish - time.monotonic()))
            job.log(loss=total, all=fabric.all_reduce(total.clone(), reduce_op="sum"))
            fabric.clip_gradients(model, optimizer, max_norm=arguments.clip)
            optimizer.step()


if __name__ == "__main__":
    main(parse())

"""The usual recipe: gradient accumulation, mixed precision with a scaler, clipping, a learning rate with a schedule.

    reknit run --standalone --replicas 3 train_recipe.py --steps 500

What a step comes to does not depend on who was there when it was made, nor on how many attempts it took: a step is
always the same micro-batches; a replica accumulates the gradients of its share of them; and the scaler and the schedule
step with the optimizer, once for each committed step, on all workers alike.
"""

import argparse
import time

import torch
from torch import nn

import reknit


def make_data(seed):
    """Random points, and a fixed function of them to learn."""
    torch.manual_seed(seed)
    points = torch.randn(10_000, 32)
    return points, torch.sin(points @ torch.randn(32, 4) / 32**0.5)


def make_model(seed, width):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4))


def make_schedule(optimizer, warmup, decay):
    """Up to the full rate within `warmup` steps, then down by half every `decay` steps."""

    def factor(step):
        return min(1, (step + 1) / warmup) * 0.5 ** (step / decay)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def parse(words=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=0, help="make each step take about this long, to measure with")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--global-batch", type=int, default=96, help="samples in a step, whoever is there")
    parser.add_argument("--micro-batch", type=int, default=8, help="samples in one forward and backward pass")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=20, metavar="STEPS")
    parser.add_argument("--decay", type=int, default=200, metavar="STEPS")
    parser.add_argument("--clip", type=float, default=1.0, help="the largest norm of the whole model's gradient")
    parser.add_argument("--scale", type=float, default=2.0**16, help="what the loss is multiplied by at first")
    parser.add_argument("--growth", type=int, default=2000, metavar="STEPS", help="steps until the scale is doubled")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def main(arguments):
    torch.set_num_threads(1)  # the workers of a laptop share its few cores
    points, answers = make_data(arguments.seed)
    job = reknit.join()
    model = job.data_parallel(make_model(arguments.seed, arguments.width).to(job.device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    schedule = make_schedule(optimizer, arguments.warmup, arguments.decay)
    scaler = torch.amp.GradScaler(job.device.type, init_scale=arguments.scale, growth_interval=arguments.growth)
    data = job.sampler(len(points), arguments.global_batch, arguments.micro_batch, seed=arguments.seed)
    job.register(model=model, optimizer=optimizer, schedule=schedule, scaler=scaler)

    while job.step < arguments.steps:
        with job.attempt() as attempt:
            finish = time.monotonic() + arguments.step_ms / 1000
            total = 0.0
            for shard in data.shards(job.step):  # gradients add up, and are reduced with the last one's
                with torch.autocast(job.device.type, dtype=torch.float16):
                    predicted = model(points[shard].to(job.device))
                    loss = nn.functional.mse_loss(predicted, answers[shard].to(job.device)) * shard.weight
                scaler.scale(loss).backward()
                total += loss.item()
            time.sleep(max(0.0, finish - time.monotonic()))
            job.log(loss=total, rate=schedule.get_last_lr()[0], scale=scaler.get_scale())
            attempt.commit(optimizer, schedule, scaler=scaler, clip_norm=arguments.clip)


if __name__ == "__main__":
    main(parse())

"""Data parallel or two stages, in which one process gets stuck or slow where the test says."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.faults import problem
from tests.faults.following import Orders
from torch import nn
from torch.nn import functional

import reknit

orders = Orders()
points, answers = problem.dataset()
job = reknit.join()
model = job.data_parallel(nn.Sequential(*(problem.part(stage) for stage in range(problem.STAGES))))
optimizer, scheduler = problem.optimizer_of(model)
data = job.sampler(problem.LENGTH, problem.GLOBAL_BATCH, problem.MICRO_BATCH, seed=problem.SEED)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
orders.obey(job, model, optimizer)


def asked(what: str) -> str:
    """What the test asks this worker for, once: the file's content; empty if nothing.

    `9.0 250` asks for 9.0 at step 250, so that all can be asked for the same at once.
    """
    path = orders.folder / f"{os.environ['REKNIT_WORKER_ID']}.{what}"
    try:
        text, _, step = str(path.read_text()).partition(" ")
        if step and job.step < int(step):
            return ""
        path.unlink()
    except FileNotFoundError:
        return ""
    return text


def dally(where: str) -> None:
    """Loop for ever, evaluate for so many seconds, announced or not: as asked."""
    if asked(f"loop.{where}"):
        while True:
            pass
    if seconds := asked(f"sleep.{where}"):
        time.sleep(float(seconds))
    if seconds := asked(f"long.{where}"):
        with job.long_phase("evaluation"):
            time.sleep(float(seconds))


slow = Path(orders.folder / f"{os.environ['REKNIT_WORKER_ID']}.slow")
while orders.go_on(job.step):
    dally("between")
    with job.attempt() as attempt:
        job.log(state=problem.fingerprint(model, optimizer, scheduler))
        total = 0.0
        for shard in data.shards(job.step):
            dally("forward")
            loss = functional.mse_loss(model(points[shard]), answers[shard]) * shard.weight
            loss.backward()
            total += loss.item()
        if slow.exists():
            time.sleep(float(slow.read_text() or 0))
        job.log(loss=total)
        attempt.commit(optimizer, scheduler, clip_norm=problem.CLIP_NORM)

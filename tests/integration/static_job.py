"""Runs an example on plain torch.distributed: one replica, a fixed set of stages, no faults, no reknit underneath.

    python static_job.py OUTPUT STORE RANK STAGES script.py [args…]

It stands in for the job that `reknit.join()` returns, so that what an example computes can be compared with the same
model trained in one piece.  The losses, the seconds spent in attempts and the first step's gradients are
saved to OUTPUT.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import reknit
from reknit.runtime.data import Sampler


class StaticJob:
    replica = 0
    replicas = 1
    model_size = 1
    device = torch.device("cpu")

    def __init__(self, rank: int, stages: int) -> None:
        self.step = 0
        self.coordinate = SimpleNamespace(pipe=rank, model=0)
        self.pipeline_size = stages
        self.losses: list[float] = []
        self.seconds = 0.0
        self.gradients: dict[str, torch.Tensor] = {}
        self.registered: dict[str, Any] = {}

    def begin_shard(self, indices: Any, is_last: bool) -> None:
        pass

    def consumed(self, indices: Any) -> None:
        pass

    def data_parallel(self, module: nn.Module) -> nn.Module:
        return module

    def sampler(self, length: int, global_batch: int, micro_batch: int, seed: int = 0) -> Sampler:
        self._sampler = Sampler(length, global_batch, micro_batch, seed, self)
        return self._sampler

    def register(self, **things: Any) -> None:
        self.registered |= things

    def pipeline(self, build: Callable[[Any], Any]) -> Any:
        return build(
            SimpleNamespace(
                stage=self.coordinate.pipe,
                stages=self.pipeline_size,
                group=dist.group.WORLD,
                micro_batches=self._sampler.micro_batches,
                device=self.device,
            )
        )

    def log(self, loss: float) -> None:
        self.losses.append(loss)

    @contextmanager
    def attempt(self) -> Iterator[StaticJob]:
        started = time.monotonic()
        yield self
        self.seconds += time.monotonic() - started

    def commit(self, optimizer: torch.optim.Optimizer) -> None:
        if self.step == 0:
            weights = self.registered["model"].named_parameters()
            self.gradients = {name: weight.grad.clone() for name, weight in weights}
        optimizer.step()
        optimizer.zero_grad()
        self.step += 1


def main() -> None:
    output, store, rank, stages, script, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(stages))
    job = StaticJob(int(rank), int(stages))
    vars(reknit)["join"] = lambda: job
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
    saved = {name: getattr(job, name) for name in ("losses", "seconds", "gradients")}
    torch.save(saved, output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

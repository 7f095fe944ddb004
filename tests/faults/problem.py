"""The small problem that the fault tests train on, and what one process of plain torch, without faults, makes of it.

Two layers that are a replica of one worker, or one pipeline stage each; three for three stages.  Small enough that a
step takes milliseconds.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from reknit.runtime.data import Sampler, View

LENGTH, GLOBAL_BATCH, MICRO_BATCH, SEED = 500, 24, 4, 11
WIDTHS = ((8, 32), (32, 4))
THREE_WIDTHS = ((8, 32), (32, 32), (32, 4))
CLIP_NORM = 0.25
RATE, DECAY, DECAY_STEPS = 0.01, 0.9, 50
STAGES = len(WIDTHS)


def dataset() -> tuple[torch.Tensor, torch.Tensor]:
    """Points (LENGTH, 8) and answers (LENGTH, 4)."""
    generator = torch.Generator().manual_seed(SEED)
    points = torch.randn(LENGTH, WIDTHS[0][0], generator=generator)
    return points, torch.sin(points @ torch.randn(WIDTHS[0][0], WIDTHS[-1][1], generator=generator))


def part(stage: int, stages: int = STAGES) -> nn.Module:
    """One stage of the model, always with the same initial weights."""
    torch.manual_seed(SEED + stage)
    width, out = (WIDTHS if stages == STAGES else THREE_WIDTHS)[stage]
    return nn.Sequential(nn.Linear(width, out), nn.Tanh() if stage < stages - 1 else nn.Identity())


def optimizer_of(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """The optimizer and the scheduler of a model or of a part of it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=DECAY_STEPS, gamma=DECAY)


def samples_of(step: int) -> tuple[int, ...]:
    """The samples of the attempt on top of `step` committed steps, over all replicas."""
    return _sampler().samples(step)


def reference_losses() -> Iterator[float]:
    """The loss of every step, from the first on, as plain torch computes it."""
    points, answers = dataset()
    model = nn.Sequential(*(part(stage) for stage in range(STAGES)))
    parameters = list(model.parameters())
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    for step in itertools.count():
        chosen = list(samples_of(step))
        loss = functional.mse_loss(model(points[chosen]), answers[chosen])
        gradients = torch.autograd.grad(loss, parameters)
        norm = float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())
        rate = RATE * DECAY ** (step // DECAY_STEPS)
        for p, g, (first, second) in zip(parameters, gradients, moments, strict=True):
            adam(p.data, g * min(1.0, CLIP_NORM / (norm + 1e-6)), first, second, rate, step + 1)
        yield loss.item()


def adam(p: torch.Tensor, g: torch.Tensor, first: torch.Tensor, second: torch.Tensor, rate: float, step: int) -> None:
    """AdamW's step in place, by its formula: torch's own imports its compiler, which takes longer than the test."""
    first.mul_(0.9).add_(g, alpha=0.1)
    second.mul_(0.999).addcmul_(g, g, value=0.001)
    p.mul_(1 - rate * 0.01)
    p.addcdiv_(first / (1 - 0.9**step), (second / (1 - 0.999**step)).sqrt() + 1e-8, value=-rate)


def fingerprint(*objects: Any) -> float:
    """A hash of some objects' state_dicts, 48 bits of it, so that a float holds it exactly."""
    hashed = hashlib.sha256()
    for value in objects:
        _feed(hashed, value.state_dict())
    return float(int.from_bytes(hashed.digest()[:6], "big"))


def _feed(hashed: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        hashed.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key, inner in value.items():
            hashed.update(str(key).encode())
            _feed(hashed, inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _feed(hashed, inner)
    elif isinstance(value, float):
        hashed.update(struct.pack("<d", value))
    else:
        hashed.update(repr(value).encode())


def _sampler() -> Sampler:
    view = cast(View, SimpleNamespace(replicas=1, replica=0))
    return Sampler(LENGTH, GLOBAL_BATCH, MICRO_BATCH, SEED, view)

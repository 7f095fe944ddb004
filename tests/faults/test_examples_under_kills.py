"""The examples of more than data parallelism, with kills: the losses of the committed steps follow the undisturbed run.

Undisturbed: one process of plain torch, with the example's own whole model and the same samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from tests.faults import invariants
from tests.faults.harness import SCRIPTS, START_SECONDS, Event, JobRun
from tests.faults.scripts.train_example import load
from torch import nn
from torch.nn import functional

from reknit.runtime.data import Sampler, View

pytestmark = pytest.mark.timeout(300)  # on a busy machine; a quiet one takes a tenth of that

REPLICAS = 2
MORE_STEPS = 20  # after the last change


def train(
    folder: Path, words: Sequence[str], sampler: Sampler, pipe: int, model: int, faults: Sequence[tuple[int, str]]
) -> list[Event]:
    """Run an example in two replicas, let a worker at each of some coordinates die in some phase; return all events."""
    options = ("--standalone", "--model", str(model))
    script = SCRIPTS / "train_example.py"
    with JobRun(folder, script, words, replicas=f"1:{REPLICAS}", pipe=pipe, options=options) as run:
        run.wait_strength(REPLICAS, timeout=START_SECONDS)
        for coordinate, phase in faults:
            run.wait_steps(3)
            since = len(run.poll())
            coordinates = run.coordinates()
            run.fail_at(next(worker for worker in sorted(coordinates) if coordinates[worker] == coordinate), phase)
            run.wait_event("worker_died", since=since)
            run.wait_strength(REPLICAS, since)
        last = run.stop_soon(MORE_STEPS)
        assert run.wait_end(60) == 0
    invariants.check(run.events, sampler.samples)
    invariants.finished_alike(run.events, last, REPLICAS * pipe * model)
    assert list(run.of("healed")), "nobody took a state over"
    assert list(run.of("retried")), "no attempt was ended"
    return run.events


def follows(events: list[Event], step_loss: Callable[[int], float]) -> None:
    """Each committed step's loss is what plain torch has; `step_loss(step)` makes one step after the other."""
    losses = invariants.losses(events)
    assert losses
    for step in range(max(losses)):
        expected = step_loss(step)
        if step + 1 in losses:
            assert losses[step + 1] == pytest.approx(expected, rel=1e-3), f"the loss of step {step + 1}"


def sampler_of(length: int, global_batch: int, micro_batch: int, seed: int) -> Sampler:
    return Sampler(length, global_batch, micro_batch, seed, cast(View, SimpleNamespace(replicas=1, replica=0)))


@pytest.mark.long
def test_tensor_and_pipeline_and_data_parallel(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog; " * 60)
    words = ["train_3d.py", "--layers", "2", "--width", "32", "--context", "16", "--data", str(text)]
    words += ["--global-batch", "12", "--micro-batch", "3", "--clip", "0.5"]  # nearly each step is clipped
    example: Any = load(words[0])
    arguments = example.parse(words[1:])
    inputs, targets = example.cut_blocks(example.read_text(arguments.data), arguments.context)
    sampler = sampler_of(len(inputs), arguments.global_batch, arguments.micro_batch, arguments.seed)
    events = train(tmp_path, words, sampler, 2, 2, [(0, "backward"), (3, "reduce")])

    stages = []
    for stage in range(2):
        torch.manual_seed(arguments.seed + stage)
        stages.append(example.Stage(stage, 2, arguments.layers, arguments.width, arguments.context))
    model = nn.Sequential(*stages)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)

    def step_loss(step: int) -> float:
        chosen = list(sampler.samples(step))
        loss = functional.cross_entropy(model(inputs[chosen].int()).flatten(0, 1), targets[chosen].flatten().long())
        return clipped_step(loss, optimizer, arguments.clip)

    follows(events, step_loss)


@pytest.mark.long
def test_sharded_within_replicas(tmp_path: Path) -> None:
    words = ["train_hsdp.py", "--width", "33", "--clip", "0.1"]  # not of two equal parts; nearly each step is clipped
    example: Any = load(words[0])
    arguments = example.parse(words[1:])
    points, answers = example.make_data(arguments.seed)
    sampler = sampler_of(len(points), 96, 8, arguments.seed)
    faults = [(0, "forward"), (1, "backward"), (0, "half voted")]
    events = train(tmp_path, words, sampler, 1, 2, faults)

    model = example.make_model(arguments.seed, arguments.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step_loss(step: int) -> float:
        chosen = list(sampler.samples(step))
        return clipped_step(functional.mse_loss(model(points[chosen]), answers[chosen]), optimizer, arguments.clip)

    follows(events, step_loss)


def clipped_step(loss: torch.Tensor, optimizer: torch.optim.Optimizer, limit: float) -> float:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], limit)
    optimizer.step()
    return loss.item()


def test_accumulation_mixed_precision_clipping_and_a_schedule(tmp_path: Path) -> None:
    # The first scale is too large for 16 bits, and it is doubled so early that it soon is so again.
    words = ["train_recipe.py", "--width", "32", "--clip", "0.1", "--scale", "1e8", "--growth", "15", "--warmup", "10"]
    example: Any = load(words[0])
    arguments = example.parse(words[1:])
    points, answers = example.make_data(arguments.seed)
    sampler = sampler_of(len(points), arguments.global_batch, arguments.micro_batch, arguments.seed)
    events = train(tmp_path, words, sampler, 1, 1, [(0, "backward"), (0, "half voted"), (0, "optimizer")])

    model = example.make_model(arguments.seed, arguments.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    schedule = example.make_schedule(optimizer, arguments.warmup, arguments.decay)
    scaler = torch.amp.GradScaler("cpu", init_scale=arguments.scale, growth_interval=arguments.growth)
    known: list[tuple[float, float]] = []

    def step_loss(step: int) -> float:
        known.append((schedule.get_last_lr()[0], scaler.get_scale()))
        total = 0.0
        for part in torch.tensor(sampler.samples(step)).split(arguments.micro_batch):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = functional.mse_loss(model(points[part]), answers[part]) * sampler.weight
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), arguments.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        schedule.step()
        return total

    follows(events, step_loss)
    for event in invariants.of(events, "committed"):
        assert (event["rate"], event["scale"]) == known[event["step"] - 1], f"{event['worker']} at step {event['step']}"
    scales = [scale for _, scale in known]
    assert sum(a > b for a, b in pairwise(scales)) > 2, "too few steps were left out"
    assert any(a < b for a, b in pairwise(scales)), "the scale has never grown"


@pytest.mark.long
def test_a_loop_of_lightning_fabric(tmp_path: Path) -> None:
    pytest.importorskip("lightning_fabric")
    words = ["train_fabric.py", "--width", "32", "--clip", "0.1"]
    example: Any = load(words[0])
    arguments = example.parse(words[1:])
    points, answers = example.make_data(arguments.seed)
    sampler = sampler_of(len(points), 96, 8, arguments.seed)
    events = train(tmp_path, words, sampler, 1, 1, [(0, "backward"), (0, "half voted")])

    model = example.make_model(arguments.seed, arguments.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = example.make_schedule(optimizer)
    losses = []

    def step_loss(step: int) -> float:
        chosen = list(sampler.samples(step))
        loss = functional.mse_loss(model(points[chosen]), answers[chosen])
        losses.append(clipped_step(loss, optimizer, arguments.clip))
        schedule.step()
        return losses[-1]

    follows(events, step_loss)
    for event in invariants.of(events, "committed"):
        assert event["all"] == pytest.approx(losses[event["step"] - 1], rel=1e-3)

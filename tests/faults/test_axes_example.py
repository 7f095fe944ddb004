"""Tensor parallel x pipeline parallel x data parallel, the example itself, with kills at different coordinates."""

from __future__ import annotations

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

EXAMPLE = "train_3d.py"
PIPE, MODEL, REPLICAS = 2, 2, 2
SIZE = PIPE * MODEL
WORDS = ("--layers", "2", "--width", "32", "--context", "16", "--global-batch", "12", "--micro-batch", "3")
CLIP = 0.5  # so small that nearly each step is clipped


def test_the_loss_follows_the_undisturbed_run_whoever_dies(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog; " * 60)
    words = [EXAMPLE, *WORDS, "--clip", str(CLIP), "--data", str(text)]
    example = cast(Any, load(EXAMPLE))
    arguments = example.parse(words[1:])
    inputs, _ = example.cut_blocks(example.read_text(arguments.data), arguments.context)
    view = cast(View, SimpleNamespace(replicas=1, replica=0))
    sampler = Sampler(len(inputs), arguments.global_batch, arguments.micro_batch, arguments.seed, view)
    with JobRun(
        tmp_path,
        SCRIPTS / "train_example.py",
        words,
        replicas=f"1:{REPLICAS}",
        pipe=PIPE,
        options=("--standalone", "--model", str(MODEL)),
    ) as run:
        run.wait_strength(REPLICAS, timeout=START_SECONDS)
        for coordinate in (0, SIZE - 1):
            run.wait_steps(3)
            since = len(run.poll())
            coordinates = run.coordinates()
            run.kill(next(worker for worker in sorted(coordinates) if coordinates[worker] == coordinate))
            run.wait_strength(REPLICAS, since)
        last = run.stop_soon()
        assert run.wait_end(60) == 0
        invariants.check(run.events, sampler.samples)
        invariants.finished_alike(run.events, last, REPLICAS * SIZE)
        assert {event["worker"] for event in run.of("healed")}, "nobody took a state over"
        follows_the_undisturbed_run(run.events, example, arguments, sampler)


def follows_the_undisturbed_run(events: list[Event], example: Any, arguments: Any, sampler: Sampler) -> None:
    losses = invariants.losses(events)
    inputs, targets = example.cut_blocks(example.read_text(arguments.data), arguments.context)
    stages = []
    for stage in range(PIPE):
        torch.manual_seed(arguments.seed + stage)
        stages.append(example.Stage(stage, PIPE, arguments.layers, arguments.width, arguments.context))
    model = nn.Sequential(*stages)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    clipped = 0
    for step in range(max(losses)):
        chosen = list(sampler.samples(step))
        loss = functional.cross_entropy(model(inputs[chosen].int()).flatten(0, 1), targets[chosen].flatten().long())
        optimizer.zero_grad()
        loss.backward()
        clipped += float(nn.utils.clip_grad_norm_(model.parameters(), arguments.clip)) > arguments.clip
        optimizer.step()
        if step + 1 in losses:
            assert losses[step + 1] == pytest.approx(loss.item(), rel=1e-3), f"the loss of step {step + 1}"
    assert clipped > max(losses) / 2

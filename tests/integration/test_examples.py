"""The examples compute what the same model, trained in one piece by plain torch, computes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.nn import functional

from reknit.runtime.data import Sampler, View

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
GPT_SIZES = {"layers": 3, "width": 32, "context": 16}
SEED, STEPS, GLOBAL_BATCH, MICRO_BATCH, LEARNING_RATE = 3, 5, 12, 4, 0.01


@pytest.fixture(scope="module")
def gpt() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLES / "train_gpt.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_stages(folder: Path, stages: int, script: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Run an example as one replica of `stages` processes; return what each of them saved."""
    runner = str(Path(__file__).with_name("static_job.py"))
    outputs = [folder / f"{rank}.pt" for rank in range(stages)]
    processes = [
        subprocess.Popen(
            [sys.executable, runner, output, folder / "store", str(rank), str(stages), EXAMPLES / script, *arguments]
        )
        for rank, output in enumerate(outputs)
    ]
    try:
        assert [process.wait(timeout=60) for process in processes] == [0] * stages
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(output) for output in outputs]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_pipelined_gpt_equals_the_unsplit_one(stages: int, gpt: ModuleType, tmp_path: Path) -> None:
    text_file = tmp_path / "text"
    text_file.write_bytes(b"the quick brown fox jumps over the lazy dog; " * 60)
    sizes = [part for name, size in GPT_SIZES.items() for part in (f"--{name}", str(size))]
    arguments = [*sizes, "--data", str(text_file), "--seed", str(SEED), "--steps", str(STEPS)]
    arguments += ["--global-batch", str(GLOBAL_BATCH), "--micro-batch", str(MICRO_BATCH)]
    saved = run_stages(tmp_path, stages, "train_gpt.py", [*arguments, "--learning-rate", str(LEARNING_RATE)])

    pieces = []
    for stage in range(stages):
        torch.manual_seed(SEED + stage)
        pieces.append(gpt.Stage(stage, stages, **GPT_SIZES))
    model = nn.Sequential(*pieces)
    losses, gradients = train_unsplit(model, *gpt.cut_blocks(gpt.read_text([text_file]), GPT_SIZES["context"]))

    assert saved[-1]["losses"] == pytest.approx(losses, rel=1e-4)
    for stage, part in enumerate(saved):
        assert len(part["gradients"]) == len(list(pieces[stage].parameters()))
        for name, gradient in part["gradients"].items():
            torch.testing.assert_close(gradient, gradients[f"{stage}.{name}"], rtol=1e-4, atol=1e-7)


def train_unsplit(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Train on the mean loss over each step's whole batch; return each step's loss and the first step's gradients."""
    view = cast(View, SimpleNamespace(replicas=1, replica=0))
    sampler = Sampler(len(inputs), GLOBAL_BATCH, MICRO_BATCH, SEED, view)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses, gradients = [], {}
    for step in range(STEPS):
        chosen = list(sampler.samples(step))
        logits = model(inputs[chosen].int())
        loss = functional.cross_entropy(logits.flatten(0, 1), targets[chosen].flatten().long())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            gradients = {name: cast(torch.Tensor, weight.grad).clone() for name, weight in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def test_the_model_looks_only_back(gpt: ModuleType) -> None:
    model = gpt.Stage(0, 1, **GPT_SIZES)
    tokens = torch.randint(0, 256, (2, GPT_SIZES["context"]))
    changed = tokens.clone()
    changed[:, 10:] = 0
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-3)


def test_blocks_pair_each_byte_with_the_one_that_follows(gpt: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(bytes(range(23)))
    inputs, targets = gpt.cut_blocks(gpt.read_text([file]), 5)
    assert inputs.tolist() == [list(range(start, start + 5)) for start in (0, 5, 10, 15)]
    assert torch.equal(targets, inputs + 1)


def test_the_standard_library_is_there_by_default(gpt: ModuleType) -> None:
    text = gpt.read_text(None)
    assert len(text) > 1_000_000
    assert torch.equal(text, gpt.read_text(None))


@pytest.mark.parametrize(
    ("script", "steps", "step_ms", "fall"), [("train_ddp.py", 150, 10, 0.5), ("train_gpt.py", 40, 0, 0.7)]
)
def test_the_loss_falls_at_the_pace_asked(script: str, steps: int, step_ms: int, fall: float, tmp_path: Path) -> None:
    (saved,) = run_stages(tmp_path, 1, script, ["--steps", str(steps), "--step-ms", str(step_ms)])
    assert len(saved["losses"]) == steps
    assert sum(saved["losses"][-5:]) < fall * sum(saved["losses"][:5])
    assert saved["seconds"] >= steps * step_ms / 1000

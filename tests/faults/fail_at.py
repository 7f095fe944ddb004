"""Kills or stops a worker at a chosen point of a step: from inside, as no signal from outside hits a phase reliably.

The test's side arms a fault by a file in a folder; the worker's side, in a training script, looks there at every point
that it passes.  Whoever strikes removes the file first, so each fault strikes once, whatever incarnation it hits.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reknit.runtime import injection
from reknit.runtime.sharding import is_sharded

# In the order of a step.  `half voted`: the data group has voted, the replica has not.  `optimizer`: the parameters are
# stepped, the version isn't taken yet.  `committed`: it is taken, and nobody has been told.
PHASES = ("forward", "backward", "reduce", "vote", "half voted", "voted", "optimizer", "committed")
# In the order of a reinit.  Those of a healing's sources and receivers: nothing but the structure has been sent yet, or
# half of all that this source sends, and half of the state is there.
OF_A_HEALING = ("heal", "be healed", "heal halfway", "be healed halfway")
RESTORE = "restore"  # only of a reinit that goes back to a checkpoint, between "compare" and "heal"
OF_A_REINIT = ("connect", "compare", *OF_A_HEALING, "ready")
ANY = "any"


def fail_at(folder: Path, worker: str, step: int, phase: str, number: int = signal.SIGKILL) -> Path:
    """Arm a fault: `worker` sends itself a signal when first at `phase` of an attempt on top of `step` or more steps.

    `worker` may be ANY: whoever gets there first.  Returns the file that is there until the fault has struck.
    """
    known = (*PHASES, *OF_A_REINIT, RESTORE)
    if phase not in known:
        raise ValueError(f"there is no phase {phase!r}; the phases are {', '.join(known)}")
    path = folder / f"{worker}.{step}.{phase}.fault"
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"worker": worker, "step": step, "phase": phase, "signal": int(number)}))
    new.rename(path)
    return path


class Injector:
    """The worker's side; `install` puts it into one training process."""

    def __init__(self, folder: Path, worker: str, step: Callable[[], int]) -> None:
        self._folder, self._worker, self._step = folder, worker, step
        self._forwards: dict[int, int] = {}

    def install(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Hook into every phase: the product's named points, the modules and the optimizer of the script."""
        injection.install(self._on_point)
        model.register_forward_pre_hook(self._on_forward)
        next(model.parameters()).register_hook(self._on_gradient)
        if is_sharded(next(model.parameters())):  # what FSDP2 has sharded is no leaf of the graph
            list(model.modules())[-1].register_full_backward_hook(lambda *_: self.reach("backward", self._step()))
        optimizer.register_step_post_hook(lambda *_: self.reach("optimizer", self._step()))

    def reach(self, phase: str, step: int) -> None:
        """This worker is at `phase`: die or stop, if that was asked for."""
        for path in self._folder.glob("*.fault"):
            with suppress(FileNotFoundError):  # somebody else has struck
                fault = json.loads(path.read_text())
                if fault["worker"] in (self._worker, ANY) and fault["phase"] == phase and step >= fault["step"]:
                    path.unlink()
                    os.kill(os.getpid(), fault["signal"])

    def _on_point(self, phase: str, step: int) -> None:
        self.reach(phase, step)

    def _on_forward(self, *_: Any) -> None:
        """Only from an attempt's second micro-batch on: others are under way by then."""
        step = self._step()
        self._forwards = {step: self._forwards.get(step, 0) + 1}
        if self._forwards[step] > 1:
            self.reach("forward", step)

    def _on_gradient(self, gradient: torch.Tensor) -> None:
        self.reach("backward", self._step())

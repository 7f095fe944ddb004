"""What both training scripts of the fault tests do around their loop: look for faults, and for how far to train."""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import time
from pathlib import Path

import torch
from tests.faults.fail_at import Injector
from torch import nn

from reknit.runtime.job import Job

STOP, HOLD = "stop-at", "hold"


class Orders:
    """The test's orders to one training process, in a folder."""

    def __init__(self) -> None:
        """Read the command line; wait as long as the test holds newcomers back."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--orders", type=Path, required=True, metavar="FOLDER")
        parser.add_argument("--step-ms", type=float, default=25)
        parser.add_argument("--checkpoint", type=Path, metavar="FOLDER")
        parser.add_argument("--every", type=int, default=10, metavar="STEPS")
        parser.add_argument("--keep", type=int, default=3, metavar="CHECKPOINTS")
        arguments = parser.parse_args()
        self.folder, self._pause = arguments.orders, arguments.step_ms / 1000
        self._checkpoint, self._every, self._keep = arguments.checkpoint, arguments.every, arguments.keep
        torch.set_num_threads(1)
        faulthandler.register(signal.SIGUSR1)  # the test asks for it when it has waited in vain
        while (self.folder / HOLD).exists():
            time.sleep(0.005)

    def obey(self, job: Job, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Put the faults in."""
        worker = os.environ["REKNIT_WORKER_ID"]
        Injector(self.folder, worker, lambda: job.state.step).install(model, optimizer)

    def keep_checkpoints(self, job: Job) -> None:
        """If the test has named a folder."""
        if self._checkpoint is not None:
            job.checkpoint(self._checkpoint, every=self._every, keep=self._keep)

    def first(self, what: str) -> bool:
        """Whether this process is the first one of the job that asks this."""
        try:
            (self.folder / what).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def go_on(self, step: int) -> bool:
        """Whether to make another step: until the test has said how many, for ever."""
        time.sleep(self._pause)
        try:
            return step < int((self.folder / STOP).read_text())
        except FileNotFoundError:
            return True

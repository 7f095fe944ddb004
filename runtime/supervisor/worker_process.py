"""What the supervisor tells of its workers, and what it keeps about each."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field

from reknit.rendezvous.errors import ReknitError


class SupervisorError(ReknitError):
    """A worker cannot be started as asked."""


@dataclass(frozen=True)
class Started:
    """The worker's process is there and about to run the script."""

    worker_id: str
    pid: int


@dataclass(frozen=True)
class Exited:
    """The worker's process is dead and its output forwarded.

    `returncode` is as in `subprocess`; None if nobody can know it.  `pid` is None if it was stopped before it began.
    """

    worker_id: str
    pid: int | None
    returncode: int | None
    lived_seconds: float


@dataclass(frozen=True)
class Failed:
    """The worker could not be started, and trying again would not help."""

    worker_id: str
    reason: str


SupervisorEvent = Started | Exited | Failed


@dataclass(eq=False)
class WorkerProcess:
    """What the supervisor knows of one worker, from the request to the exit."""

    worker_id: str
    argv: list[str]
    environment: dict[str, str]
    folder: str
    requested: bool = False  # asked of the warm process, which has not answered yet
    requests: int = 0
    go: int = -1
    pid: int | None = None
    pidfd: int = -1
    process: subprocess.Popen[bytes] | None = None  # if exec'ed
    warm_pid: int | None = None  # the warm process that will report the exit status
    began: float = 0.0
    told: bool = False  # that it has started
    stopping: bool = False
    descriptors: list[int] = field(default_factory=list)  # the pipes' writing ends, until the worker has them

    def close_descriptors(self) -> None:
        """Let go of the pipes' writing ends: the worker has its own copies, or will never be."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

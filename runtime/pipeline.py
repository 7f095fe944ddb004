"""The pipeline of a job: the user's callback builds stage and schedule, anew at each formation or change of share.

A schedule that was kept across formations would make the fresh peer abort, and its number of micro-batches is part of
it.  The stage's module is the user's own and is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from reknit.runtime.stopwatch import StageWatch


@dataclass(frozen=True)
class Share:
    """What a pipeline is built for.

    `stage` of `stages` is this rank's; `group` is the pipe group within the replica that this rank is in;
    `micro_batches` is how many of them this replica runs in a step.
    """

    stage: int
    stages: int
    group: dist.ProcessGroup | None
    micro_batches: int
    device: torch.device


class Pipeline:
    """Forwards to the schedule of the present formation and share; `waited` hears what of a step was only waiting."""

    def __init__(
        self,
        build: Callable[[Share], Any],
        share: Callable[[], tuple[object, Share]],
        waited: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._build, self._share, self._waited = build, share, waited
        self._key: object = None
        self._schedule: Any = None
        self._stages = StageWatch()

    @property
    def schedule(self) -> Any:
        """The present schedule, built now if formation or share have changed."""
        key, share = self._share()
        if key != self._key:
            self._schedule = None  # the old stage holds the old group
            self._schedule, self._key = self._build(share), key
            self._stages.watch(self._schedule)
        return self._schedule

    def step(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the schedule once: as its own `step`."""
        schedule = self.schedule
        result, waited = self._stages.waited(lambda: schedule.step(*arguments, **keywords))
        self._waited(waited)
        return result

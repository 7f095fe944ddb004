"""How long a worker itself takes in an attempt: from its begin to the reduction, without waiting for others.

On a CPU that is the time on the clock, less what a pipeline's schedule spends outside of its own stage: there it waits
for its peers.  With CUDA the host only queues the work, so two events on the stream take the time; that includes what
the device waits for within a pipeline.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

CHUNKS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")  # a stage's own work, in torch


def _cuda_event() -> Any:
    return torch.cuda.Event(enable_timing=True)


class Stopwatch:
    """Times one attempt after the other.  Seconds."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, make_event: Callable[[], Any] = _cuda_event
    ) -> None:
        self._clock, self._make_event = clock, make_event
        self._events: tuple[Any, Any] | None = None
        self._begun = self._ended = 0.0
        self._apart = 0.0

    def use(self, device: torch.device) -> None:
        """Where the work is done."""
        self._events = (self._make_event(), self._make_event()) if device.type == "cuda" else None

    def begin(self) -> None:
        """The attempt begins."""
        self._apart = 0.0
        self._begun = self._clock()
        if self._events is not None:
            self._events[0].record()

    def leave_out(self, seconds: float) -> None:
        """So long this worker has only waited for others."""
        self._apart += seconds

    def stop(self) -> None:
        """What follows is the reduction."""
        self._ended = self._clock()
        if self._events is not None:
            self._events[1].record()

    def own(self) -> float:
        """This worker's own part; ask when the reduction has ended, as then the device has done its work."""
        seconds = self._ended - self._begun
        if self._events is None:
            return max(0.0, seconds - self._apart)
        first, last = self._events
        return max(seconds, first.elapsed_time(last) / 1000) if last.query() else seconds

    def since_stop(self) -> float:
        """How long ago it was stopped."""
        return self._clock() - self._ended


class StageWatch:
    """Tells, of the time that a pipeline's schedule takes, what is its own stage's work."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds = 0.0
        self._known = False

    def watch(self, schedule: Any) -> None:
        """Time the stages of a schedule that was just built; of one that is not torch's nothing is known."""
        stages = getattr(schedule, "_stages", None) or [getattr(schedule, "_stage", None)]
        self._known = all(hasattr(type(stage), name) for stage in stages for name in CHUNKS)
        if self._known:
            for stage in stages:
                for name in CHUNKS:
                    setattr(stage, name, self._timed(weakref.ref(stage), getattr(type(stage), name)))

    def waited(self, run: Callable[[], Any]) -> tuple[Any, float]:
        """What `run` returns, and the seconds of it that were not the stages' work; 0 if that is not known."""
        begun, before = self._clock(), self._seconds
        result = run()
        took, worked = self._clock() - begun, self._seconds - before
        return result, max(0.0, took - worked) if self._known else 0.0

    def _timed(self, stage: Callable[[], Any], chunk: Callable[..., Any]) -> Callable[..., Any]:
        """A method of a stage, held weakly: a stage that held itself would keep the old formation's group."""

        def timed(*arguments: Any, **keywords: Any) -> Any:
            begun = self._clock()
            try:
                return chunk(stage(), *arguments, **keywords)
            finally:
                self._seconds += self._clock() - begun

        return timed

"""What one worker's process has told of how it gets on, beside what belongs into its record.

Kept by its agent for those who look at the job (`showing`).  Pure; time is passed in (monotonic seconds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reknit.health.worker_record import slowdown_of
from reknit.rendezvous.records import Stall
from reknit.runtime.stalls import is_over

REINIT, STEP = "reinit", "step"


@dataclass
class Known:
    """What one process has told of how it gets on.  `since`: when it came to `phase`, which its events say.

    `step`, `committed_at`: of its newest committed step.  `stall`: its newest pulse, which came at `told_at`; None when
    it gets on.
    """

    since: float
    phase: str = ""
    step: int | None = None
    committed_at: float | None = None
    stall: Stall | None = None
    told_at: float = 0.0
    slowdown: float | None = None

    def see_pulse(self, pulse: Stall, now: float) -> None:
        """It says what it is at, or that this is over."""
        self.stall, self.told_at = (None if is_over(pulse) else pulse), now

    def see_event(self, event: str, fields: Mapping[str, Any], now: float) -> None:
        """It tells of an event."""
        match event:
            case "committed":
                self._come_to(fields.get("step"))
                self.committed_at = now
                if (slowdown := slowdown_of(fields)) is not None:  # told every few steps
                    self.slowdown = slowdown
                self._enter(STEP, now)
            case "reinit_begin":
                self._enter(REINIT, now)
            case "reinit_done":  # perhaps healed, or back at a checkpoint
                self._come_to(fields.get("step"))
                self._enter(STEP, now)
            case "retried":
                self._enter(STEP, now)
            case _:
                pass

    def _come_to(self, step: object) -> None:
        if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 2**62:
            self.step = step

    def _enter(self, phase: str, now: float) -> None:
        self.phase, self.since, self.stall = phase, now, None

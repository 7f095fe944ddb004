"""What the agent's log says between membership events: that the job moves on, or what it waits for.

Pure: fed with what happens and the time, it answers with a sentence now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

EVERY = 10.0  # seconds between two sentences
NAMED = 3  # who is held up is listed up to this many


@dataclass
class Progress:
    """One agent's view of how its job is getting on.

    `said`: when something was last said or committed.  `plain`: the script knows nothing of reknit: no steps.
    """

    needed: int
    said: float
    plain: bool = False
    step: int = 0
    said_step: int = 0
    numbers: dict[str, float] = field(default_factory=dict)  # of the newest step, as far as they have come
    complete: dict[str, float] = field(default_factory=dict)  # of the step before

    def committed(self, step: int, numbers: dict[str, float]) -> None:
        """A worker of this host committed a step, and logged these numbers with it."""
        if step > self.step:
            self.step, self.complete, self.numbers = step, self.numbers, {}
        if step == self.step:
            for name, value in numbers.items():
                self.numbers[name] = self.numbers.get(name, 0.0) + value

    def sentence(
        self, now: float, running: bool, attached: int, finished: int, held_up: Sequence[str] = ()
    ) -> str | None:
        """What there is to say, if it is time: `attached` workers are on this host, `finished` of them are done.

        `held_up`: a sentence on each worker that does not come to a place.
        """
        if now - self.said < EVERY or (self.plain and running and attached > finished):
            return None
        more = [*held_up[:NAMED], *([f"{len(held_up) - NAMED} more are held up"] if len(held_up) > NAMED else [])]
        return "; ".join([self._how_it_goes(now, running, attached, finished), *more])

    def _how_it_goes(self, now: float, running: bool, attached: int, finished: int) -> str:
        seconds, self.said = now - self.said, now
        moved, self.said_step = self.step - self.said_step, self.step
        if moved > 0:
            values = "".join(f", {name} {value:.4g}" for name, value in sorted(self.complete.items()))
            return f"step {self.step}{values}; {1000 * seconds / moved:.0f} ms a step"
        if finished and finished == attached:
            return "all workers of this host have finished; waiting for the others, and for etcd to record it"
        if not running:
            return f"waiting to begin: at least {self.needed} must have built their models; attached here: {attached}"
        if not attached:
            return "the job runs, and no worker of this host has attached yet"
        return f"no step for {seconds:.0f} s (the newest is {self.step}): a worker may hang, or be in a long phase"

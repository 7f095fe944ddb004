"""How much of its training a job keeps while a worker dies every ten seconds.

The same job as in `gap`.  It trains undisturbed for a while, then for a minute in which a worker is SIGKILLed every ten
seconds, then undisturbed again.  Goodput is the steps committed in that minute over those of an undisturbed minute; the
latter is taken from both undisturbed stretches, so that a machine that becomes slower or faster is no figure.
"""

from __future__ import annotations

import random
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from tests.bench.gap import REPLICAS, SCRIPT, STEP_MS, Run, wait
from tests.bench.processes import Processes
from tests.bench.table import Figure

EVERY_SECONDS = 10.0
GOAL = 97.0  # percent

Stretch = tuple[float, float]  # from when to when (monotonic)


def steps_in(stretch: Stretch, reached: Mapping[int, float]) -> int:
    """How many steps were first committed in a stretch; `reached`: step → when."""
    times = sorted(reached.values())
    return bisect_right(times, stretch[1]) - bisect_right(times, stretch[0])


def goodput(disturbed: Stretch, undisturbed: Sequence[Stretch], reached: Mapping[int, float]) -> float:
    """Percent: the steps of the disturbed stretch over those of an undisturbed one of the same length."""
    usual = mean(steps_in(stretch, reached) / (stretch[1] - stretch[0]) for stretch in undisturbed)
    return 100 * steps_in(disturbed, reached) / (usual * (disturbed[1] - disturbed[0]))


def follow(run: Run, seconds: float, check: Callable[[], None]) -> Stretch:
    """Let the job train for so long."""
    begun = time.monotonic()
    while time.monotonic() < begun + seconds:
        check()
        time.sleep(0.02)
        run.read()
    return begun, begun + seconds


def collect(kills: int, quiet: float, seed: int) -> tuple[Run, Stretch, list[Stretch]]:
    """The job; its disturbed stretch, and the undisturbed ones of `quiet` seconds before and after it."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as folder, Processes(Path(folder)) as processes:
        steps = ["--steps", "1000000", "--step-ms", str(STEP_MS)]
        processes.reknit("job", SCRIPT, *steps, replicas=REPLICAS, events=True)
        run = Run(processes.events("job"))
        wait(run, lambda: run.settled() and bool(run.victims()), processes.check)
        before = follow(run, quiet, processes.check)
        begun = time.monotonic()
        for number in range(kills):
            due = begun + (number + 0.5) * EVERY_SECONDS + chance.random() * run.situation.step_seconds
            follow(run, max(0.0, due - time.monotonic()), processes.check)
            run.strike(chance.choice(run.victims()))
        follow(run, begun + kills * EVERY_SECONDS - time.monotonic(), processes.check)
        wait(run, run.settled, processes.check)
        after = follow(run, quiet, processes.check)
        run.read()
    return run, (begun, begun + kills * EVERY_SECONDS), [before, after]


def run(quick: bool) -> list[Figure]:
    """One run."""
    kills, quiet = (2, 6.0) if quick else (6, 12.0)
    seen, disturbed, undisturbed = collect(kills, quiet, seed=0)
    reached = seen.situation.reached
    rates = [steps_in(stretch, reached) / quiet for stretch in undisturbed]
    steps, length = steps_in(disturbed, reached), disturbed[1] - disturbed[0]
    note = f"{steps} steps in {length:.0f} s, {kills} kills; undisturbed {rates[0]:.2f} and {rates[1]:.2f} a second"
    value = goodput(disturbed, undisturbed, reached)
    lost = (100 - value) / 100 * length / kills * 1000
    return [
        Figure("goodput", value, goal=GOAL, at_least=True, unit="%", note=note),
        Figure("  training time that a kill costs", lost, "a step", 1000 / mean(rates)),
    ]

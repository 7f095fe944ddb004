"""What checkpoints cost the steps: the same job with them and without, in turns.

A turn is as long as the way from one checkpoint to the next, and begins with the step that is followed by one.  So all
that a checkpoint costs falls into its own job's turn: the copy, and what the writing in the background takes away.  The
job without them runs twice: the difference is the noise floor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from tests.bench.processes import SCRIPTS, Processes
from tests.bench.table import Figure, Spread
from tests.bench.turns import Conductor

from reknit.runtime.demo.story import Event, Reader

WITH, WITHOUT, AGAIN = "with", "without", "without-again"
SYSTEMS = (WITHOUT, WITH, AGAIN)
SIZES = (10, 100)  # MB
EVERY = 40  # steps
PAD_SECONDS = 0.025  # as a forward pass that leaves the processor idle
SLOW = 0.9  # of a turn: a checkpoint that takes longer reaches into the next job's turn

Turns = Mapping[str, Sequence[Sequence[float]]]  # system → its turns → seconds of each step


@dataclass(frozen=True)
class Cost:
    """All in ms.  `step`: one without checkpoints.

    `more`: how much longer a step is with them, on average over a turn, a round each.  `floor`: the same between the
    two jobs without.  `stop`: for how long the job stands still at a checkpoint.
    """

    step: float
    more: Spread
    floor: Spread
    stop: Spread


def cost_of(turns: Turns) -> Cost:
    """Compare the turns, round by round."""
    first, again, ours = ([mean(turn) for turn in turns[system]] for system in (WITHOUT, AGAIN, WITH))
    return Cost(
        1000 * median([*first, *again]),
        Spread.of(c - (a + b) / 2 for a, b, c in zip(first, again, ours, strict=True)),
        Spread.of(b - a for a, b in zip(first, again, strict=True)),
        # Whoever copies does so within the first step; the other waits for it in the second.
        Spread.of(turn[0] + turn[1] - 2 * median(turn) for turn in turns[WITH]),
    )


def measure(size: int, rounds: int) -> tuple[Turns, list[Event]]:
    """Let the jobs take turns, with a state of `size` MB; also the events of the one with checkpoints."""
    turns: dict[str, list[list[float]]] = {system: [] for system in SYSTEMS}
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as name, Processes(Path(name)) as processes:
        path = Path(name) / "turns"
        conductor = Conductor(path)
        for system in SYSTEMS:
            arguments = ["--turns", str(path), "--system", system, "--state-mb", str(size)]
            if system == WITH:
                arguments += ["--checkpoint", str(Path(name) / "checkpoints"), "--every", str(EVERY)]
            script = SCRIPTS / "checkpointed.py"
            processes.reknit(system, script, *arguments, replicas=2, events=system == WITH)
        conductor.gather(dict.fromkeys(SYSTEMS, 2), processes.check)
        for system in SYSTEMS:
            conductor.turn(system, EVERY - 1)
        for number in range(rounds):
            first = number % len(SYSTEMS)
            for system in [*SYSTEMS[first:], *SYSTEMS[:first]]:
                turns[system].append(conductor.turn(system, EVERY, PAD_SECONDS))
        conductor.end()
        events = Reader(processes.events(WITH)).read()
    return turns, [event for event in events if event["event"].startswith("checkpoint")]


def _figures(size: int, rounds: int) -> Iterator[Figure]:
    turns, events = measure(size, rounds)
    written = [event for event in events if event["event"] == "checkpoint"]
    if len(written) < rounds - 1:
        raise RuntimeError(f"only {len(written)} checkpoints in {rounds} turns: {events}")
    cost, taken = cost_of(turns), Spread.of(event["seconds"] for event in written)
    copied = Spread.of(event["paused"] for event in written)
    what = f"{size} MB, every {EVERY} steps"
    noise = f"+-{cost.more.error:.2f}; noise floor {cost.floor.median:+.2f} +-{cost.floor.error:.2f}; {rounds} rounds"
    yield Figure(f"{what}: a step, above one without", cost.more.median, "a step", cost.step, note=noise)
    note = f"worst {cost.stop.worst:.0f}; the copy alone {copied.median:.1f}; written behind it in {taken.median:.0f}"
    if taken.worst > SLOW * EVERY * cost.step:
        note += ", which reaches into another job's turn"
    yield Figure(f"{what}: standstill at a checkpoint", cost.stop.median, "a step", cost.step, note=note)


def run(quick: bool) -> list[Figure]:
    """For each size."""
    return [figure for size in SIZES for figure in _figures(size, 3 if quick else 6)]

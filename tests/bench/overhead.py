"""What a step costs more than under stock torch, and whether the reduction still overlaps with backward.

All systems take turns (see `turns`).  Stock runs twice: the difference between the two is the noise floor, and their
mean is what reknit is compared with, round by round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.bench.processes import SCRIPTS, Processes
from tests.bench.table import Figure, Spread
from tests.bench.turns import Conductor

STOCK, AGAIN, REKNIT, AFTER = "stock", "stock-again", "reknit", "reknit-after"
PAD_SECONDS = 0.025  # as a forward pass that leaves the processor idle
WARM_UP_STEPS = 10

Turns = Mapping[str, Sequence[float]]  # system → seconds of a step, the median of each of its turns


def measure(
    script: str, systems: Sequence[str], rounds: int, steps: int, pads: Sequence[float], pipe: int = 1
) -> list[Turns]:
    """Let the systems take turns on 2 replicas: one result for each of `pads`."""
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as name, Processes(Path(name)) as processes:
        path = Path(name) / "turns"
        conductor = Conductor(path)
        for system in systems:
            arguments = ["--turns", str(path), "--system", system]
            if system.startswith(STOCK):
                processes.stock(system, SCRIPTS / script, *arguments, ranks=2 * pipe)
            else:
                processes.reknit(system, SCRIPTS / script, *arguments, replicas=2, pipe=pipe)
        conductor.gather(dict.fromkeys(systems, 2 * pipe), processes.check)
        for system in systems:
            conductor.turn(system, WARM_UP_STEPS)
        results: list[dict[str, list[float]]] = [{system: [] for system in systems} for _ in pads]
        for number in range(rounds):
            first = number % len(systems)  # nobody always comes first
            for pad, result in zip(pads, results, strict=True):
                for system in [*systems[first:], *systems[:first]]:
                    result[system].append(median(conductor.turn(system, steps, pad)))
        conductor.end()
    return list(results)


def figures_of(turns: Turns, goal: float) -> list[Figure]:
    """A step's time beside stock's, and the difference beside the noise floor."""
    first, again, ours = turns[STOCK], turns[AGAIN], turns[REKNIT]
    stock = Spread.of([*first, *again]).median
    floor = Spread.of(b - a for a, b in zip(first, again, strict=True))
    more = Spread.of(c - (a + b) / 2 for a, b, c in zip(first, again, ours, strict=True))
    step = f"step of {stock:.0f} ms"
    note = f"+-{more.error:.2f}; noise floor, stock against stock: {floor.median:+.2f} +-{floor.error:.2f}"
    return [
        Figure(f"{step}: reknit", Spread.of(ours).median, "stock", stock, note=f"{len(ours)} rounds"),
        Figure(f"{step}: reknit above stock", more.median, "stock", stock, goal, note=note),
    ]


def one_stage(quick: bool) -> list[Figure]:
    """Plain data parallel: one vote a step."""
    rounds, steps = (4, 10) if quick else (12, 20)
    measured = measure("one_stage.py", [STOCK, REKNIT, AGAIN], rounds, steps, [0.0, PAD_SECONDS])
    return [figure for turns in measured for figure in figures_of(turns, goal=1.5)]


def two_stages(quick: bool) -> list[Figure]:
    """Pipeline × data: a vote over the replicas, then a round within each."""
    rounds, steps = (4, 10) if quick else (10, 20)
    measured = measure("two_stages.py", [STOCK, REKNIT, AGAIN], rounds, steps, [0.0, PAD_SECONDS], pipe=2)
    return [figure for turns in measured for figure in figures_of(turns, goal=4.0)]


def overlap(quick: bool) -> list[Figure]:
    """A model of several buckets: how much of the reduction hides behind backward."""
    rounds, steps = (3, 3) if quick else (6, 4)
    (turns,) = measure("buckets.py", [STOCK, REKNIT, AFTER, AGAIN], rounds, steps, [0.0])
    step = {system: Spread.of(seconds).median for system, seconds in turns.items()}
    return [
        Figure("step with 67 MB of gradients: stock again", step[AGAIN], "stock", step[STOCK]),
        Figure("step with 67 MB of gradients: reknit", step[REKNIT], "stock", step[STOCK]),
        Figure("the same, all reduced after backward", step[AFTER], "stock", step[STOCK]),
    ]

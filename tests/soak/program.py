"""What the soak does, and when: a pure function of its length and the seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

CHAOS, HOST, WORKER, PAIR, EVERYTHING = "chaos", "host", "worker", "pair", "everything"
ROUND_SECONDS = 150.0
ACTS_SECONDS = 60.0  # about what a round's acts other than chaos take
LEAST_CHAOS = 20.0


@dataclass(frozen=True)
class Act:
    """One thing to do.  `seconds`: how long chaos strikes; 0 for the others, which take as long as they take.

    `nodes`: all nodes' numbers, those that it is about first.
    """

    kind: str
    nodes: tuple[int, ...]
    seconds: float = 0.0


def program(minutes: float, nodes: int, seed: int) -> list[Act]:
    """The acts in order: rounds of planned changes, the loss of everything in every other round, and chaos."""
    chance = random.Random(f"reknit-soak/{seed}")
    rounds = max(1, round(minutes * 60 / ROUND_SECONDS))
    chaos = max(LEAST_CHAOS, minutes * 60 / rounds - ACTS_SECONDS)
    acts: list[Act] = []
    for number in range(rounds):
        kinds = [HOST, WORKER, PAIR, *([EVERYTHING] if number % 2 == 0 else [])]
        acts += [Act(kind, tuple(chance.sample(range(nodes), nodes))) for kind in kinds]
        acts.append(Act(CHAOS, tuple(range(nodes)), chaos))
    return acts

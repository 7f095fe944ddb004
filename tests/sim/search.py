"""Search: every interleaving breadth first, or random walks for bigger bounds."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from tests.sim.model import Model
from tests.sim.state import State, ViolationError


@dataclass(frozen=True)
class Verdict:
    """What a search has found: `holds`, or the way to the first thing that does not."""

    holds: bool
    what: str
    states: int
    way: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"  {k} {line}" for k, line in enumerate(self.way, 1)]
        return "\n".join([f"{self.what} ({self.states} states)", *lines])


def search(model: Model, seconds: float = 1e9) -> Verdict:
    """Visit every state within the scenario's bounds.

    Safety is checked on every edge; then, that a finished job can be reached from every state by protocol moves alone:
    no deadlock, nobody waits for a plan that will not come.
    """
    first = model.tidy(model.initial())
    index: dict[State, int] = {first: 0}
    order: list[State | None] = [first]
    parents, labels = [0], [""]
    backward: list[list[int]] = [[]]
    good: list[int] = []
    deadline = time.monotonic() + seconds

    def way(k: int) -> tuple[str, ...]:
        out = []
        while k:
            out.append(labels[k])
            k = parents[k]
        return tuple(reversed(out))

    k = 0
    while k < len(order):
        s, order[k] = order[k], None
        assert s is not None
        if model.done(s) or model.hopeless(s):
            good.append(k)
        for label, outside, make in list(model.moves(s)):
            try:
                t = model.tidy(make())
            except ViolationError as violation:
                return Verdict(False, f"violation: {violation}", len(order), (*way(k), label))
            j = index.setdefault(t, len(order))
            if j == len(order):
                order.append(t)
                parents.append(k)
                labels.append(label)
                backward.append([])
            if not outside:
                backward[j].append(k)
        k += 1
        if time.monotonic() > deadline:
            return Verdict(False, f"not searched to the end, {len(way(k - 1))} moves deep", len(order))
    stuck = _unreachable(good, backward)
    if stuck is not None:
        return Verdict(False, "deadlock: the job can no longer finish", len(order), way(stuck))
    return Verdict(True, "holds", len(order))


def _unreachable(good: list[int], backward: list[list[int]]) -> int | None:
    reach, todo = set(good), list(good)
    while todo:
        for i in backward[todo.pop()]:
            if i not in reach:
                reach.add(i)
                todo.append(i)
    return next((j for j in range(len(backward)) if j not in reach), None)


def walk(model: Model, count: int, seed: int = 1, length: int = 800) -> Verdict:
    """Random walks: safety on every edge; a walk that can no longer move and is not done is a deadlock."""
    rng, moved = random.Random(seed), 0
    for n in range(count):
        s = model.initial()
        way: list[str] = []
        wildness = rng.random() * 0.2
        for _ in range(length):
            options = list(model.moves(s))
            calm, wild = [o for o in options if not o[1]], [o for o in options if o[1]]
            if not calm:
                if not model.done(s) and not model.hopeless(s):
                    return Verdict(False, f"deadlock (walk {n})", moved, tuple(way))
                break
            label, _, make = rng.choice(wild if wild and rng.random() < wildness else calm)
            way.append(label)
            try:
                s = model.tidy(make())
            except ViolationError as violation:
                return Verdict(False, f"violation (walk {n}): {violation}", moved, tuple(way))
            moved += 1
            if model.done(s):
                break
        else:
            return Verdict(False, f"did not end (walk {n})", moved, tuple(way))
    return Verdict(True, "holds", moved)

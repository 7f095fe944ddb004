"""Small edits of a state, what may be forgotten of it, and the invariants that single edits check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from tests.sim.product import Product
from tests.sim.state import (
    DEAD,
    GONE,
    IDLE,
    NAMES,
    STEP_NAMES,
    UP,
    Gen,
    Plan,
    Rules,
    Scenario,
    State,
    ViolationError,
    Worker,
    gone,
    show,
    step_of,
)

T = TypeVar("T")


def put(values: tuple[T, ...], i: int, value: T) -> tuple[T, ...]:
    return (*values[:i], value, *values[i + 1 :])


def slot_of(plan: Plan, w: int) -> int:
    for k, replica in enumerate(plan.places):
        if w in replica:
            return k
    return -1


def everyone(plan: Plan) -> list[int]:
    return [m for replica in plan.places for m in replica]


def label_of(pos: int, generation: int) -> str:
    if pos < 4:
        return f"{NAMES[pos]}, g{generation}"
    return f"{STEP_NAMES[pos % 4]}, g{generation}.s{pos // 4}"


def complete_set(workers: tuple[Worker, ...], version: int, stages: int) -> bool:
    """Whether a complete set of living members holds this version, committed or prepared."""
    return len({w.coord for w in workers if w.life == UP and w.member and version in (w.ver, w.prep)}) == stages


@dataclass
class Ground:
    """A scenario, the rules in force, and the product's functions."""

    scenario: Scenario
    rules: Rules
    product: Product

    @property
    def stages(self) -> int:
        return self.scenario.stages

    @property
    def last(self) -> int:
        return 1 + self.scenario.steps

    # ---------------------------------------------------------------- edits

    def worker(self, s: State, i: int, **changes: Any) -> State:
        return s._replace(workers=put(s.workers, i, s.workers[i]._replace(**changes)))

    def vanish(self, s: State, i: int) -> State:
        return s._replace(workers=put(s.workers, i, gone(s.workers[i])))

    def groups_of(self, s: State, generation: int) -> Gen:
        gen = s.gens[generation - 1]
        assert gen is not None
        return gen

    def edit(self, s: State, generation: int, **changes: Any) -> State:
        return s._replace(gens=put(s.gens, generation - 1, self.groups_of(s, generation)._replace(**changes)))

    def close(self, s: State, i: int, how: int) -> State:
        g = s.workers[i].cur
        return self.edit(s, g, closed=put(self.groups_of(s, g).closed, i, how)) if g else s

    def members_of(self, plan: Plan, i: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Worker i's replica and its data group."""
        k = slot_of(plan, i)
        c = plan.places[k].index(i)
        return plan.places[k], tuple(replica[c] for replica in plan.places)

    def die(self, s: State, i: int, how: int) -> State:
        s = self.close(s, i, how)
        w = s.workers[i]._replace(life=DEAD, known=0, cur=0, phase=IDLE, mute=False, again=False, begun=0)
        if not self.scenario.hasty:  # its record stays until its loss is seen, but its agent would refute it
            w = w._replace(ready=0, left=0, ver=0, prep=0, incomplete=0, torn=False)
        return s._replace(workers=put(s.workers, i, w))

    def tidy(self, s: State) -> State:
        """Forget what can no longer matter, so that equal futures are equal states."""
        gens, plans = s.gens, s.plans
        for g in range(1, len(gens)):
            if gens[g - 1] is None or any(
                w.life == UP
                and (
                    w.cur == g or (w.known == g and w.left < g) or (self.scenario.every and not w.mute and w.known < g)
                )
                for w in s.workers
            ):
                continue
            gens = put(gens, g - 1, None)
            if any(p.places for p in plans[g:]):
                plans = put(plans, g - 1, Plan())
        return s._replace(gens=gens, plans=plans)

    # ---------------------------------------------------------------- invariants

    def commit(self, s: State, i: int, version: int) -> State:
        """Somebody has committed `version`, by a vote or by rolling forward."""
        k = step_of(version)
        have = s.committed[k]
        if have and have != version:
            evicted = not s.workers[i].member
            if evicted and any(p.restore for p in s.plans) and version < max(s.committed):
                return s  # below a restore, by one that no plan names: harmless
            raise ViolationError(f"step {k} is committed twice with different data: {show(have)} and {show(version)}")
        return self.worker(s, i, pristine=False)._replace(committed=put(s.committed, k, version))

    def going_back(self, s: State, target: int, told: bool) -> State:
        newest = max(s.committed)
        if target >= newest:
            return s
        if complete_set(s.workers, newest, self.stages):
            raise ViolationError(f"goes back from {show(newest)} to {show(target)} although a complete set holds it")
        if not told:
            raise ViolationError(f"goes back from {show(newest)} to {show(target)} without saying so")
        k = step_of(target)
        return s._replace(committed=(*s.committed[:k], target, *(0,) * (self.last - k)))

    # ---------------------------------------------------------------- what must be reachable

    def done(self, s: State) -> bool:
        if s.plans[-1].finished:
            return True
        if s.exited:
            return all(w.life != UP or step_of(w.ver) == self.last for w in s.workers if w.member)
        for g, gen in enumerate(s.gens, 1):
            here = everyone(s.plans[g - 1])
            if gen and here and all(self._at_the_end(s.workers[m], g) for m in here):
                return True
        return False

    def _at_the_end(self, w: Worker, generation: int) -> bool:
        return w.life == UP and w.cur == generation and step_of(w.ver) == self.last

    def hopeless(self, s: State) -> bool:
        """Too few living members for one replica: the plan says `waiting`."""
        free = [w.coord for w in s.workers if w.life == UP and w.member]
        return len([c for c in range(self.stages) if c not in free]) > free.count(-1) and not s.exited


__all__ = ["GONE", "Ground", "complete_set", "everyone", "label_of", "put", "slot_of"]

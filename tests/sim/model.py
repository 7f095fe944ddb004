"""The whole model: the leader, the world's events, and all next states of a state.

An executable form of PROTOCOL.md in which every decision is the product's own function.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tests.sim.generation import Generation, Move
from tests.sim.ground import complete_set, everyone, put, slot_of
from tests.sim.product import Published, head_of, seen
from tests.sim.state import (
    CHECKPOINT,
    CRASHED,
    DEAD,
    EVENTS,
    FRESH,
    GONE,
    HEAL,
    OPEN,
    SILENT,
    UP,
    WAIT,
    WORK,
    Gen,
    Plan,
    State,
    ViolationError,
    Worker,
    show,
    step_of,
    tag,
)


class Model(Generation):
    """Everything that a worker, the leader or the world may do next."""

    # ---------------------------------------------------------------- start

    def initial(self) -> State:
        """Generation 2 runs and has committed step 1; step 0 is the checkpoint."""
        if self.scenario.fresh:
            return self._nothing_yet()
        sc, n = self.scenario, self.scenario.stages * self.scenario.replicas
        places = tuple(tuple(range(r * sc.stages, (r + 1) * sc.stages)) for r in range(sc.replicas))
        running = Worker(member=True, placed=2, since=2, ready=2, known=2, cur=2, left=1, phase=WAIT, begun=2)
        running = running._replace(ver=tag(2, 1))
        # spares hold an older version, and gradients of an attempt that was retried without them
        spare = Worker(member=True, placed=1, since=1, ready=1, known=2, left=2, ver=CHECKPOINT, prep=tag(1, 1))
        workers = tuple(running._replace(coord=i % sc.stages) for i in range(n))
        workers += tuple(spare._replace(coord=c) for c in sc.spares)
        workers += (Worker(life=GONE),) * sc.join
        total, k = len(workers), self.last + 1
        base = put((0,) * k, 2, tag(2, 1)) if k > 2 else (0,) * k
        pos = tuple(8 + WORK if i < n else -1 for i in range(total))
        gen = Gen(pos, (OPEN,) * total, (), tag(2, 1), (99,) * k, base)
        plan = Plan(places, (2,) * sc.replicas, tuple(2 if i < n else 0 for i in range(total)))
        committed = (CHECKPOINT, tag(2, 1)) + (0,) * sc.steps
        desired = sc.desired or sc.replicas
        return State((Plan(), plan), workers, (None, gen), desired, sc.allowed(), False, False, committed)

    def _nothing_yet(self) -> State:
        """Members have come, and the newest plan says `waiting`."""
        sc = self.scenario
        workers = (FRESH._replace(known=1, left=1),) * (sc.stages * sc.replicas) + (Worker(life=GONE),) * sc.join
        committed = (0,) * (self.last + 1)
        desired = sc.desired or sc.replicas
        return State((Plan(),), workers, (None,), desired, sc.allowed(), False, False, committed)

    # ---------------------------------------------------------------- the leader

    def lead(self, s: State, before: State | None = None, renewed: int = -1) -> State:
        """The leader looks at the members; `before`: the state in which the newest plan was last looked at."""
        plan = self.product.next_plan(head_of(before or s), seen(s, renewed), s.desired)
        return s if plan is None else self.publish(s, plan)

    def publish(self, s: State, plan: Published) -> State:
        g = len(s.plans) + 1
        if plan.lost:
            return self.from_checkpoint(s, plan)
        if plan.finished:
            return self.finish(s)
        if plan.target:
            s = self.restart(s, plan) if plan.restore else self.going_back(s, plan.target, True)
        return self.calm(self.seat(s, plan, g), plan)

    def calm(self, s: State, plan: Published) -> State:
        """The same members and reports lead to nothing more, unless it is the end."""
        more = self.product.next_plan(head_of(s), seen(s), s.desired)
        if more is not None and not more.finished:
            raise ViolationError(f"one change, two plans: {plan.reason}; then {more.reason}")
        return s

    def seat(self, s: State, plan: Published, g: int) -> State:
        workers = list(s.workers)
        since = [0] * len(workers)
        for places, run in zip(plan.places, plan.run, strict=True):
            for c, (m, first) in enumerate(zip(places, run, strict=True)):
                workers[m] = workers[m]._replace(placed=g, since=first, coord=c)
                since[m] = first
        new = Plan(plan.places, plan.formed, tuple(since), plan.broken, plan.target, plan.restore, plan.origin)
        n, k = len(workers), self.last + 1
        gen = Gen((-1,) * n, (OPEN,) * n, (None,) * n, 0, (99,) * k, (0,) * k)
        return s._replace(plans=(*s.plans, new), workers=tuple(workers), gens=(*s.gens, gen))

    def restart(self, s: State, plan: Published) -> State:
        """The leader says that nobody has trained yet."""
        newest = max(s.committed)
        if step_of(newest):
            raise ViolationError(f"starts anew although {show(newest)} has been committed")
        return s._replace(committed=(plan.target,) + (0,) * self.last)

    def finish(self, s: State) -> State:
        """The leader says that the job has finished."""
        newest, head = max(s.committed), s.plans[-1]
        made = {w.coord for w in s.workers if w.member and w.ver == newest}  # one of them may have died since
        if step_of(newest) != self.last or len(made) < self.stages:
            raise ViolationError(f"is said to have finished, but {show(newest)} is all that there is")
        here = [m for m in everyone(head) if s.workers[m].life == UP and s.workers[m].member]
        late = [m for m in here if s.workers[m].ver != newest]
        if late:
            raise ViolationError(f"is said to have finished, but {late} have not made the last step")
        return s._replace(plans=(*s.plans, Plan(finished=True)), gens=(*s.gens, None))

    def from_checkpoint(self, s: State, plan: Published) -> State:
        """The state is lost, and the plan says so.  Here a checkpoint exists, and everybody goes back to it."""
        s = self.going_back(s, CHECKPOINT, True)
        head, g, members = head_of(s), len(s.plans) + 1, seen(s)
        target = tag(g, 0)
        places = self.product.around(members, s.desired)
        since = [w.since if w.placed == head.placed else g for w in s.workers]
        run = tuple(tuple(since[m] for m in replica) for replica in places)
        plan = plan._replace(
            places=places, formed=(g,) * len(places), run=run, broken=g - 1, target=target, restore=True, lost=False
        )
        return self.seat(s._replace(committed=(target,) + (0,) * self.last), plan, g)

    def lose(self, s: State, i: int) -> State:
        """The leader sees that a record is gone, or that a new incarnation has taken its place."""
        before, w = s, s.workers[i]
        s = self.vanish(s, i)
        if w.again:
            s = s._replace(workers=put(s.workers, i, FRESH._replace(drain=w.drain, known=w.known, left=w.known)))
        return self.lead(s, before, i if w.again else -1) if w.placed else s

    def leader_moves(self, s: State) -> Iterator[Move]:
        unseen = any(w.member and (w.life != UP or (w.again and self.rules.incarnation)) for w in s.workers)
        if unseen and not self.scenario.hasty:
            return  # asks every agent first: sees the loss instead
        plan = self.product.next_plan(head_of(s), seen(s), s.desired)
        if plan is not None:
            yield f"leader publishes g{len(s.plans) + 1}: {plan.reason}", False, lambda: self.publish(s, plan)

    # ---------------------------------------------------------------- the world

    def spend(self, s: State, what: str, fault: bool = True) -> State:
        k = EVENTS.index(what)
        return s._replace(budget=put(s.budget, k, s.budget[k] - 1), faulty=s.faulty or fault)

    def left_over(self, s: State) -> dict[str, int]:
        if sum(self.scenario.allowed()) - sum(s.budget) >= self.scenario.total or self.done(s):
            return dict.fromkeys(EVENTS, 0)
        return dict(zip(EVENTS, s.budget, strict=True))

    def faults(self, s: State, i: int, w: Worker, left: dict[str, int]) -> Iterator[Move]:
        pos = self.groups_of(s, w.cur).pos[i] if w.cur else -1
        in_replica = bool(w.cur) and self.kind(pos) == "replica"
        if left["crash"]:
            yield f"{i} crashes", True, lambda: self.die(self.spend(s, "crash"), i, CRASHED)
        if left["silent"] and w.cur:
            yield f"{i} dies silently", True, lambda: self.die(self.spend(s, "silent"), i, SILENT)
        if left["evict"] and w.placed:
            yield f"{i} is evicted alive", True, lambda: self.evict(s, i, False)
            yield f"{i} is evicted alive, its agent gone", True, lambda: self.evict(s, i, True)
        if left["glitch"] and w.cur and (w.phase == HEAL or not in_replica):
            yield f"{i} loses a data connection", True, lambda: self.leave(self.spend(s, "glitch"), i)
        if left["tear"] and self.stages > 1 and in_replica and w.phase == WAIT:
            torn = f"{i} loses a connection within its replica"
            yield torn, True, lambda: self.leave(self.spend(s, "tear"), i, CRASHED, torn=True)

    def evict(self, s: State, i: int, mute: bool) -> State:
        before = s
        s = self.worker(self.spend(s, "evict"), i, member=False, mute=mute)
        return self.settle(self.lead(s, before), i)

    def respawn(self, s: State, i: int) -> State:
        fresh = Worker(
            life=UP,
            member=True,
            drain=s.workers[i].drain,
            coord=s.workers[i].coord,
            placed=s.workers[i].placed,
            since=s.workers[i].since,
            known=len(s.plans),
            again=True,
        )
        s = self.spend(s, "respawn")
        return self.settle(s._replace(workers=put(s.workers, i, fresh)), i)

    def planned(self, s: State, left: dict[str, int]) -> Iterator[Move]:
        """Events that lose nothing, and which the leader answers at once."""
        for i, w in enumerate(s.workers):
            if left["drain"] and w.life == UP and w.member and not w.drain:
                asked = f"{i} is asked to drain"
                told = self.worker(self.spend(s, "drain", False), i, drain=True)
                yield asked, True, partial(self.lead, told)
        if left["join"]:
            i = next(k for k, w in enumerate(s.workers) if w.life == GONE and w.begun == 0)
            head = len(s.plans)
            fresh = FRESH._replace(known=head, left=head)
            joined = self.spend(s, "join", False)._replace(workers=put(s.workers, i, fresh))
            yield f"{i} joins", True, lambda: self.lead(joined)
        if left["scale"] and s.desired > 1:
            fewer = self.spend(s, "scale", False)._replace(desired=s.desired - 1)
            yield f"scale down to {s.desired - 1}", True, lambda: self.lead(fewer)
        if left["unscale"] and s.desired < (self.scenario.desired or self.scenario.replicas):
            more = self.spend(s, "unscale", False)._replace(desired=s.desired + 1)
            yield f"scale up to {s.desired + 1}", True, lambda: self.lead(more)

    # ---------------------------------------------------------------- leaving for good

    def may_exit(self, s: State, i: int) -> bool:
        """Released by the leader: a generation without it runs."""
        if not self.rules.release:
            return slot_of(s.plans[s.workers[i].known - 1], i) < 0
        head = s.plans[-1]
        return (
            slot_of(head, i) < 0
            and all(s.workers[m].life == UP for m in everyone(head))
            and self.product.runs(head_of(s), seen(s))
        )

    def exit(self, s: State, i: int) -> State:
        before, newest = s, max(s.committed)
        had = complete_set(s.workers, newest, self.stages)
        s = self.vanish(s, i)
        if had and not complete_set(s.workers, newest, self.stages):
            raise ViolationError(f"drained worker {i} exits with the only copy of {show(newest)}")
        return self.lead(s, before)

    # ---------------------------------------------------------------- all next states

    def moves(self, s: State) -> Iterator[Move]:
        if s.plans[-1].finished:
            return
        left = self.left_over(s)
        for i, w in enumerate(s.workers):
            if w.life == UP:
                yield from self.news(s, i, w)
                if w.cur:
                    yield from self.worker_moves(s, i, w)
                if w.member:
                    yield from self.faults(s, i, w, left)
                if w.drain and not w.cur and w.member and self.may_exit(s, i):
                    yield f"{i} exits", False, partial(self.exit, s, i)
                if w.again and self.rules.incarnation:
                    yield f"leader sees the new incarnation of {i}", False, partial(self.lose, s, i)
            elif w.life == DEAD and w.member:
                yield f"leader sees {i} lost", False, partial(self.lose, s, i)
                if left["respawn"]:
                    yield f"{i} is back as a new process", True, partial(self.respawn, s, i)
        yield from self.leader_moves(s)
        yield from self.planned(s, left)

    def news(self, s: State, i: int, w: Worker) -> Iterator[Move]:
        head = len(s.plans)
        if w.known < head and not w.mute:
            yield f"plan g{head} reaches {i}", False, lambda: self.settle(self.worker(s, i, known=head), i)
            if self.scenario.every and w.known + 1 < head:
                late = w.known + 1
                yield f"plan g{late} reaches {i}", False, lambda: self.settle(self.worker(s, i, known=late), i)

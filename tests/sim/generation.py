"""What a worker may do within a generation: connect, compare, settle, ready, and then steps (PROTOCOL.md, 6-14).

How communication is modelled.  Data group: gloo, one per coordinate, built anew in each generation.  A rank may see its
collective succeed once all have entered it, even if some have died or left since; it may see it fail as soon as one has
closed its sockets.  So some ranks may see success and others an error, in every combination.  Replica: the formation's
own groups (NCCL for the work, gloo for control).  They live as long as the formation; work needs all members and cannot
be interrupted while the formation stands.  A silent death gives nobody an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from tests.sim.ground import Ground, everyone, label_of, put, slot_of
from tests.sim.product import Reaction, Settling
from tests.sim.state import (
    CHECKPOINT,
    COMPARE,
    COMPARE_ALL,
    CONNECT,
    CRASHED,
    HEAL,
    IDLE,
    INCOMPLETE,
    LEFT,
    OPEN,
    READY,
    REDUCE,
    UP,
    VOTE,
    VOTE_ALL,
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

Move = tuple[str, bool, Callable[[], State]]  # label, is it an outside event, how to make it


class Generation(Ground):
    """A worker within its generation."""

    # ---------------------------------------------------------------- groups and rounds

    def kind(self, pos: int) -> str:
        """Which group position `pos` is a collective of."""
        if pos == CONNECT:
            return "both"
        if pos == READY:
            return "replica"
        second = pos == COMPARE_ALL if pos < 4 else pos % 4 == VOTE_ALL
        first = pos == COMPARE if pos < 4 else pos % 4 == VOTE
        in_replica = second if self.rules.replica_last else first
        return "replica" if in_replica or (pos >= 4 and pos % 4 == WORK) else "data"

    def group(self, s: State, i: int, pos: int) -> tuple[int, ...]:
        replica, data = self.members_of(s.plans[s.workers[i].cur - 1], i)
        kind = self.kind(pos)
        if kind == "replica":
            alone = (pos < 4 and pos != READY and not self.rules.compare_job) or (
                pos >= 4 and pos % 4 != WORK and not self.rules.vote_job
            )
            return (i,) if alone else replica
        return tuple(set(replica + data)) if kind == "both" else data

    def enter(self, s: State, i: int, pos: int) -> State:
        """Worker i enters a collective of its generation: its contribution is on the wire."""
        g = s.workers[i].cur
        s = self.edit(s, g, pos=put(self.groups_of(s, g).pos, i, pos))
        alone = self.group(s, i, pos) == (i,) and not (pos >= 4 and pos % 4 == WORK)
        return self.complete(s, i, pos) if alone else s

    def settle(self, s: State, i: int) -> State:
        """An idle worker goes for the newest plan it knows, never for a generation that it has left."""
        w = s.workers[i]
        if w.life != UP or w.cur:
            return s
        if not w.member and not w.mute:  # evicted, and told so: it fences itself
            return self.vanish(s, i)
        if w.known > w.left:
            named = w.member and not (w.again and self.rules.incarnation)
            if named and slot_of(s.plans[w.known - 1], i) >= 0:
                s = self.worker(s, i, cur=w.known, phase=WAIT, torn=False)
                return self.enter(s, i, CONNECT)
            return self.worker(s, i, left=w.known)
        return s

    def leave(self, s: State, i: int, how: int = LEFT, **changes: int) -> State:
        """Close all data groups of the generation, keep state and prepared gradients, go on to the newest plan."""
        w = s.workers[i]
        s = self.close(s, i, how)
        s = self.worker(s, i, cur=0, left=max(w.left, w.cur), phase=IDLE, **changes)
        return self.settle(s, i)

    # ---------------------------------------------------------------- what comes next for it

    def stands(self, s: State, w: Worker, i: int) -> bool:
        """Whether the newest plan that it knows holds this worker's formation unchanged."""
        mine, new = s.plans[w.cur - 1], s.plans[w.known - 1]
        return any(self.is_formation(new, k, mine, slot_of(mine, i)) for k in range(len(new.places)))

    def is_formation(self, a: Plan, k: int, b: Plan, n: int) -> bool:
        """Whether two plans' replicas are one formation."""
        return a.places[k] == b.places[n] and (a.formed[k] == b.formed[n] or not self.rules.formed)

    def worker_moves(self, s: State, i: int, w: Worker) -> Iterator[Move]:
        gen = self.groups_of(s, w.cur)
        pos = gen.pos[i]
        finished = pos >= 4 * (self.last + 1)
        working = pos >= 4 and pos % 4 == WORK  # needs every member to the end, not only its first message
        bound = (
            self.kind(pos) == "replica"
            and self.stages > 1
            and w.phase == WAIT
            and not finished
            and (self.rules.reliable or working)
        )
        if finished and not self.rules.finish:
            yield f"{i} has finished and exits", False, lambda: self.end(s, i)
        if w.known > w.cur:
            under_way = pos > CONNECT and not finished
            what = self.product.react(w.cur, under_way, w.known, s.plans[w.known - 1].broken, self.stands(s, w, i))
            if what is Reaction.URGENT_ALL or (what is Reaction.URGENT and not bound) or what is Reaction.SUPERSEDED:
                yield f"{i} leaves g{w.cur} for g{w.known}: {what.name}", False, lambda: self.leave(s, i)
        if w.phase == HEAL:
            yield from self.healing(s, i, w, gen)
        elif finished:
            return
        elif all(
            gen.pos[m] > pos or (gen.pos[m] == pos and (gen.closed[m] == OPEN or not working))
            for m in self.group(s, i, pos)
        ):
            yield f"{i} {label_of(pos, w.cur)}", False, lambda: self.complete(s, i, pos)
        yield from self.errors(s, i, w, bound)

    def healing(self, s: State, i: int, w: Worker, gen: Gen) -> Iterator[Move]:
        peers = self.members_of(s.plans[w.cur - 1], i)[1]
        source = next((s.workers[m] for m in peers if m != i and self.can_heal(s, m, w.cur, gen)), None)
        if source is not None:
            version = source.ver
            yield (
                f"{i} is healed to {show(version)}",
                False,
                lambda: self.set_out(self.worker(s, i, ver=version, ready=w.cur, phase=WAIT), i),
            )

    def can_heal(self, s: State, m: int, g: int, gen: Gen) -> bool:
        x = s.workers[m]
        return x.life == UP and x.cur == g and x.ready == g and x.ver == gen.decision and x.phase == WAIT

    def errors(self, s: State, i: int, w: Worker, bound: bool) -> Iterator[Move]:
        gen = self.groups_of(s, w.cur)
        pos = gen.pos[i]
        group = self.members_of(s.plans[w.cur - 1], i)[1] if w.phase == HEAL else self.group(s, i, pos)
        for m in group:
            # a member of the replica that left before it entered this round has said "failed"
            said = gen.closed[m] == LEFT and (not bound or (gen.pos[m] < pos and pos % 4 != WORK))
            if said and bound and not self.rules.prompt:
                x = s.workers[m]
                said = x.cur > w.cur and self.kind(self.groups_of(s, x.cur).pos[m]) == "replica"
            if said or gen.closed[m] == CRASHED:
                over = self.kind(pos) == "replica" and gen.closed[m] == CRASHED and s.workers[m].life == UP
                yield f"{i} gets an error in g{w.cur}", False, partial(self.leave, s, i, torn=over)
                return

    # ---------------------------------------------------------------- a collective has succeeded

    def complete(self, s: State, i: int, pos: int) -> State:
        if pos == CONNECT:
            return self.enter(self.tell(s, i), i, COMPARE)
        if pos == COMPARE:
            return self.enter(s, i, COMPARE_ALL)
        if pos == COMPARE_ALL:
            return self.outcome(s, i)
        if pos == READY:
            return self.begin(s, i)
        w = s.workers[i]
        g, gen, plan = w.cur, self.groups_of(s, w.cur), s.plans[w.cur - 1]
        k, operation = divmod(pos, 4)
        if operation in (WORK, VOTE):
            return self.enter(s, i, pos + 1)
        if operation == REDUCE:  # PREPARED; the vote carries the newest known plan
            s = self.worker(s, i, prep=tag(g, k))
            s = self.edit(s, g, known=put(gen.known, k, min(gen.known[k], w.known)))
            return self.enter(s, i, pos + 1)
        if not all(gen.pos[m] >= 4 * k + VOTE for m in everyone(plan)):  # COMMITTED
            raise ViolationError(f"{i} commits {show(tag(g, k))} though not all have prepared it")
        s = self.commit(s, i, tag(g, k))
        s = self.worker(s, i, ver=tag(g, k), prep=0)
        go = gen.known[k] > g if self.rules.agree else w.known > g
        return self.leave(s, i) if go else self.begin(s, i)

    def tell(self, s: State, i: int) -> State:
        """Worker i's row enters the comparison; with the last row the whole job's table decides."""
        w = s.workers[i]
        g, gen, plan = w.cur, self.groups_of(s, w.cur), s.plans[w.cur - 1]
        for m in plan.places[slot_of(plan, i)]:
            if s.workers[m].again and s.workers[m].cur == g:
                raise ViolationError(f"a replica counts as intact though {m} is a new process")
        table = put(gen.table, i, (w.ver, w.prep, w.ready >= plan.since[i]))
        s = self.edit(s, g, table=table)
        if self.rules.compare_job and all(table[m] is not None for m in everyone(plan)):
            decision = self.compare(plan, table, [list(replica) for replica in plan.places])
            s = self.edit(s, g, table=(), decision=decision)
            possible = all(gen.closed[m] == OPEN for m in everyone(plan))  # else nobody can commit in g
            if decision > 0 and possible:
                s = self.going_back(s, decision, plan.target > 0)
        return s

    def compare(self, plan: Plan, table: tuple[tuple[int, int, bool] | None, ...], replicas: list[list[int]]) -> int:
        rows = tuple((c, *row) for r in replicas for c, m in enumerate(r) if (row := table[m]) is not None)
        return self.product.decide(plan.target, rows, len(replicas[0]))

    def begin(self, s: State, i: int) -> State:
        """Start the work of the next step."""
        w = s.workers[i]
        if not self.rules.oblige and w.known > w.cur and s.plans[w.known - 1].broken >= w.cur:
            return self.leave(s, i)
        k, gen, plan = step_of(w.ver) + 1, self.groups_of(s, w.cur), s.plans[w.cur - 1]
        if k <= self.last:
            if gen.base[k] and gen.base[k] != w.ver:
                raise ViolationError(
                    f"step {k} starts in one generation from different versions: {show(gen.base[k])} and {show(w.ver)}"
                )
            if w.begun >= k and not s.faulty:
                raise ViolationError(f"planned changes alone made {i} repeat step {k}")
            self.check_work(s, w, plan, slot_of(plan, i))
            s = self.edit(s, w.cur, base=put(gen.base, k, w.ver))
        s = self.worker(s, i, begun=max(k, w.begun))
        return self.enter(s, i, 4 * k + WORK)

    def check_work(self, s: State, w: Worker, plan: Plan, k: int) -> None:
        for m in plan.places[k]:
            x = s.workers[m]
            if x.life != UP or x.cur in (0, w.cur):
                continue
            other, pos = s.plans[x.cur - 1], self.groups_of(s, x.cur).pos[m]
            if pos >= 4 and pos % 4 == WORK and self.is_formation(other, slot_of(other, m), plan, k):
                raise ViolationError(f"work of g{w.cur} meets work of g{x.cur} in one formation")

    def set_out(self, s: State, i: int) -> State:
        """At the decided version."""
        return self.enter(s, i, READY) if self.rules.ready else self.begin(s, i)

    def outcome(self, s: State, i: int) -> State:
        """The comparison is decided: settle."""
        w = s.workers[i]
        g, gen, plan = w.cur, self.groups_of(s, w.cur), s.plans[w.cur - 1]
        decision = gen.decision
        if not self.rules.compare_job:  # decided from one data group's rows only
            decision = self.compare(plan, gen.table, [[m] for m in self.members_of(plan, i)[1]])
        at = {"ready": g, "prep": 0, "phase": WAIT}
        if decision == INCOMPLETE and self.rules.repair:
            return self.leave(s, i, incomplete=g)
        if decision == INCOMPLETE:  # straight to the newest checkpoint
            s = self.going_back(s, CHECKPOINT, True)
            s = s._replace(committed=put(s.committed, 0, tag(g, 0)))
            return self.set_out(self.worker(s, i, ver=tag(g, 0), begun=0, **at), i)
        if plan.restore:
            return self.set_out(self.worker(s, i, ver=decision, begun=0, **at), i)
        how = self.product.settling(decision, w.ver, w.prep)
        if how is Settling.KEEP:
            return self.set_out(self.worker(s, i, **at), i)
        if how is Settling.ROLL_FORWARD:
            s = self.commit(s, i, w.prep)
            return self.set_out(self.worker(s, i, ver=w.prep, **at), i)
        if not self.rules.target and not w.ver:  # healed by a peer that has not rolled forward yet
            old = [s.workers[m] for m in self.members_of(plan, i)[1] if s.workers[m].prep == decision]
            if old:
                return self.set_out(self.worker(s, i, ver=old[0].ver, **at), i)
        # no state from the first byte to the last
        return self.worker(s, i, ver=0, prep=0, phase=HEAL, pristine=False)

    def end(self, s: State, i: int) -> State:
        """Only without the rule `finish`: it exits after the last step."""
        return self.die(s, i, CRASHED)._replace(exited=True)

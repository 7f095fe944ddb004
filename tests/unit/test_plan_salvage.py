"""Whatever is lost, what is left of broken replicas becomes whole ones again, with the fewest moves of state."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning import Job, running

from reknit.rendezvous.records import RUNNING, Plan, Version


@dataclass
class Held:
    """Who holds the newest step, as the test keeps account of it; nobody commits a step meanwhile."""

    job: Job
    holders: set[str]
    fresh: int = 0

    def at(self, coordinate: int) -> set[str]:
        return {worker for worker in self.holders if self.job.seen[worker].member.coordinate == coordinate}

    def lose(self, workers: set[str]) -> None:
        """Some die, but at each coordinate somebody who holds the step stays."""
        for coordinate in range(self.job.spec.axes.size):
            if self.at(coordinate) <= workers:
                workers -= {min(self.at(coordinate))}
        self.job.go(*workers)
        self.holders -= workers

    def come(self, coordinate: int) -> None:
        self.fresh += 1
        self.job.come(f"n{self.fresh}", coordinate)

    def heal(self, workers: set[str]) -> None:
        """Some of those with a place come to the newest plan: they are brought to the step if they have to be."""
        assert self.job.plan is not None
        for worker in workers:
            self.job.tell(worker, ready=self.job.plan.generation, committed=Version(1, 7), pristine=False)
        self.holders |= workers

    def keep_account(self, plan: Plan) -> None:
        """Who had a place and holds the step, but has no place now, is not brought along any further."""
        self.holders &= {name.worker_id for name in plan.names}


def check(held: Held, before: Plan, plan: Plan) -> None:
    size, wanted = held.job.spec.axes.size, held.job.spec.wanted
    holders = [held.at(coordinate) for coordinate in range(size)]
    here = held.job.here()
    assert plan.state == RUNNING
    assert len(plan.replicas) >= min(wanted, *(len(column) for column in holders))

    old = {replica.names: replica.formed for replica in before.replicas}
    now = {replica.names: replica.formed for replica in plan.replicas}
    intact = {names for names in old if here.issuperset(names)}
    standing = [{names[c].worker_id for names in intact} for c in range(size)]
    alone = any(column.isdisjoint(there) for column, there in zip(holders, standing, strict=True))
    assert len(intact - now.keys()) <= int(alone), "only to give the last holder of a coordinate a place"
    assert all(now[names] == old[names] for names in intact & now.keys())

    others = [names for names in now if names not in intact]
    for coordinate in range(size):
        free = holders[coordinate] - {names[coordinate].worker_id for names in intact & now.keys()}
        moved = [names[coordinate].worker_id for names in others if names[coordinate].worker_id not in held.holders]
        assert len(moved) == max(0, len(others) - len(free)), f"{moved} have to be healed, while {free} hold the state"


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 5), st.integers(1, 4))
def test_as_many_whole_replicas_as_there_are_holders(data: st.DataObject, replicas: int, pipe: int) -> None:
    job = running(replicas, pipe=pipe, most=replicas)
    held = Held(job, set(job.seen))
    for _ in range(data.draw(st.integers(1, 3), "rounds")):
        assert job.plan is not None
        before = job.plan
        for coordinate in data.draw(st.lists(st.integers(0, pipe - 1), max_size=3), "newcomers"):
            held.come(coordinate)
        placed = sorted(name.worker_id for name in before.names)
        held.lose(data.draw(st.sets(st.sampled_from(placed)), "lost"))
        if job.ask().plan is None:
            continue
        plan = job.next()
        check(held, before, plan)
        held.keep_account(plan)
        placed = sorted(name.worker_id for name in plan.names)
        held.heal(data.draw(st.sets(st.sampled_from(placed)), "healed"))


def test_two_replicas_that_each_lost_another_stage_are_one() -> None:
    job = running(3, pipe=3)
    job.go("a0", "b2")
    plan = job.next()
    assert sorted(job.seats()) == ["b0 a1 a2", "c0 c1 c2"]
    assert {replica.formed for replica in plan.replicas} == {1, 2}
    assert plan.target is None
    assert len(plan.former) == 1


def test_where_the_steps_differ_the_newest_that_is_whole_counts() -> None:
    """After a comparison that decided nothing: one coordinate's holders of the newer step are fewer."""
    job = running(3, pipe=2)
    job.go("a0")
    job.next()
    newer, older = Version(2, 8), Version(1, 7)
    for worker, committed, prepared in [
        ("b0", older, newer),
        ("b1", newer, None),
        ("c0", older, newer),
        ("c1", older, None),
        ("a1", older, None),
    ]:
        job.leave(worker, incomplete=2, committed=committed, prepared=prepared, pristine=False)
    plan = job.next()
    assert plan.target == newer
    assert len(plan.replicas) == 2
    assert "b0 b1" in job.seats()

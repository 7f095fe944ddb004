"""The leader's decision: who sits where next, when, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.planning import Job, formations, running

from reknit.rendezvous.parts import head_of
from reknit.rendezvous.plan import Findings, history, is_here, runs
from reknit.rendezvous.records import (
    FINISHED,
    LOST,
    RUNNING,
    WAITING,
    Axes,
    Name,
    Plan,
    Spec,
    Version,
)

# ---------------------------------------------------------------- the first plan


def test_the_first_plan_starts_everybody_from_what_the_scripts_built() -> None:
    job = running(2, pipe=2, most=2)
    assert job.plan is not None
    assert job.seats() == ["a0 a1", "b0 b1"]
    assert (job.plan.generation, job.plan.state, job.plan.placed, job.plan.origin) == (1, RUNNING, 1, 1)
    assert (job.plan.restore, job.plan.target, job.plan.broken) == (True, Version(1, 0), 0)
    assert all(replica.formed == 1 for replica in job.plan.replicas)


def test_members_without_a_built_model_get_no_place() -> None:
    job = Job(most=2)
    job.come("a0", built=False)
    job.come("b0", built=False)
    assert job.ask().plan is None
    job.tell("b0", built=True)
    job.next()
    assert job.seats() == ["b0"]
    assert job.plan is not None
    assert [name.worker_id for name in job.plan.spares] == ["a0"]


def test_arrivals_wait_for_the_join_window_unless_the_job_is_then_complete() -> None:
    job = Job(most=3)
    job.come("a0", at=10.0)
    job.come("b0", at=10.3)
    outcome = job.ask(now=10.4)
    assert outcome.plan is None
    assert outcome.again == pytest.approx(10.8)
    assert job.ask(now=10.8).plan is not None
    job.come("c0", at=10.35)
    assert job.ask(now=10.35).plan is not None


def test_a_stream_of_arrivals_cannot_hold_up_the_first_for_ever() -> None:
    job = Job(most=100)
    for k in range(20):
        job.come(f"w{k:02}", at=k * 0.4)
    outcome = job.ask(now=1.9)
    assert outcome.plan is None
    assert outcome.again == pytest.approx(2.0)
    assert job.ask(now=2.0).plan is not None


def test_too_few_members_for_the_minimum_wait() -> None:
    job = Job(pipe=2, least=2, most=2)
    for worker, coordinate in (("a0", 0), ("a1", 1), ("b0", 0)):
        job.come(worker, coordinate)
    assert job.ask().plan is None
    job.come("b1", 1)
    assert job.next().state == RUNNING


# ---------------------------------------------------------------- losses


def test_a_loss_acts_at_once_and_touches_no_intact_replica() -> None:
    job = running(3, pipe=2)
    job.go("b1")
    plan = job.next(now=0.0)
    assert (plan.generation, plan.broken, head_of(plan, "").urgent, plan.target, plan.restore) == (
        2,
        1,
        True,
        None,
        False,
    )
    assert job.seats() == ["a0 a1", "c0 c1"]
    assert [replica.slot for replica in plan.replicas] == [0, 2]
    assert all(replica.formed == 1 for replica in plan.replicas)
    assert all(place.since == 1 for replica in plan.replicas for place in replica.places)
    assert [(f.name.worker_id, f.coordinate, f.placed, f.since) for f in plan.former] == [("b0", 0, 1, 1)]
    assert "b1" in plan.reason


def test_a_newcomer_takes_the_hole_and_the_survivor_keeps_its_run() -> None:
    job = running(3, pipe=2)
    job.go("b1")
    job.next()
    job.run()
    job.come("n", 1)
    plan = job.next()
    assert job.seats() == ["a0 a1", "b0 n", "c0 c1"]
    formed = formations(plan)
    assert sorted(formed.values()) == [1, 1, 3]
    since = {place.name.worker_id: place.since for replica in plan.replicas for place in replica.places}
    assert since == {"a0": 1, "a1": 1, "c0": 1, "c1": 1, "b0": 3, "n": 3}
    assert not head_of(plan, "").urgent


def test_the_loss_of_a_member_that_never_had_a_place_changes_nothing() -> None:
    job = running(2, most=2)
    job.come("spare")
    assert job.ask().plan is None
    job.go("spare")
    assert job.ask().plan is None


def test_the_loss_of_a_former_member_is_told_while_somebody_may_still_wait_for_it() -> None:
    job = running(2, pipe=2, most=2)
    job.go("b1")
    job.next()  # b0 has no place in generation 2, and may still run generation 1
    job.go("b0")
    plan = job.next()
    assert (plan.generation, plan.broken, plan.former) == (3, 1, ())
    assert job.seats() == ["a0 a1"]


def test_the_loss_of_a_former_member_is_nothing_once_all_have_come_to_the_newest_generation() -> None:
    job = running(2, pipe=2, most=2)
    job.go("b1")
    job.next()
    job.run()
    job.go("b0")
    assert job.ask().plan is None
    job.go("a0")
    assert job.next().broken == 2


def test_a_clean_exit_after_a_drain_costs_no_generation() -> None:
    job = running(3)
    job.tell("b0", draining=True)
    plan = job.next()
    assert (job.seats(), plan.broken) == (["a0", "c0"], 0)
    assert not runs(plan, [o.member for o in job.seen.values()])
    job.run()
    job.leave("b0")
    assert runs(plan, [o.member for o in job.seen.values()])
    job.go("b0")
    assert job.ask().plan is None


def test_a_new_incarnation_is_a_loss_and_an_arrival() -> None:
    job = running(2, most=2)
    job.come("b0", incarnation="2")
    plan = job.next(now=0.0)
    assert (plan.broken, job.seats()) == (1, ["a0", "b0"])
    assert formations(plan)[(Name("b0", "2"),)] == 2


def test_a_member_that_vanished_and_came_back_before_a_plan_changes_nothing() -> None:
    job = running(2, most=2)
    old = job.seen["b0"]
    job.go("b0")
    job.seen["b0"] = old
    assert job.ask().plan is None


def test_a_member_that_a_plan_has_excluded_gets_no_place_again() -> None:
    job = running(2, most=2)
    old = job.seen["b0"]
    job.go("b0")
    job.next()
    job.seen["b0"] = old
    assert job.ask().plan is None
    assert job.plan is not None
    assert old.member.name not in {*job.plan.names, *job.plan.spares, *(f.name for f in job.plan.former)}


def test_below_the_minimum_the_plan_says_waiting_and_goes_on_when_members_come() -> None:
    job = running(2, least=2, most=2)
    job.go("b0")
    plan = job.next()
    assert (plan.state, plan.replicas, plan.placed, plan.broken) == (WAITING, (), 1, 1)
    assert "waiting" in plan.reason
    assert job.ask().plan is None
    job.come("c0")
    plan = job.next()
    assert job.seats() == ["a0", "c0"]
    assert (plan.restore, plan.target) == (False, None)
    assert {place.name.worker_id: place.since for r in plan.replicas for place in r.places} == {"a0": 1, "c0": 3}


# ---------------------------------------------------------------- reports and planned changes


def test_a_report_makes_a_generation_with_the_same_members_after_a_grace() -> None:
    job = running(2, most=2)
    job.leave("a0", at=5.0)
    outcome = job.ask(now=5.05)
    assert outcome.plan is None
    assert outcome.again == pytest.approx(5.1)
    plan = job.next(now=5.1)
    assert (plan.broken, job.seats(), sorted(formations(plan).values())) == (1, ["a0", "b0"], [1, 1])


def test_a_torn_replica_is_formed_anew() -> None:
    job = running(2, pipe=2, most=2)
    job.leave("a0", "a1", torn=1)
    assert sorted(formations(job.next()).values()) == [1, 2]


def test_scaling_down_and_up_keeps_the_first_replicas() -> None:
    job = running(3)
    job.spec = replace(job.spec, desired=2)
    plan = job.next()
    assert (job.seats(), plan.broken, len(plan.former)) == (["a0", "b0"], 0, 1)
    job.run()
    job.spec = replace(job.spec, desired=3)
    plan = job.next()
    assert job.seats() == ["a0", "b0", "c0"]
    assert formations(plan)[(Name("c0", "1"),)] == 3


def test_a_spare_takes_the_place_of_a_draining_member() -> None:
    job = running(2, most=2)
    job.come("s")
    job.tell("a0", draining=True)
    job.next()
    assert job.seats() == ["s", "b0"]


def test_draining_below_the_minimum_keeps_the_draining_member() -> None:
    job = running(2, least=2, most=2)
    job.tell("a0", draining=True)
    assert job.ask().plan is None


def test_a_draining_member_hands_over_before_it_leaves_and_nothing_is_shuffled_meanwhile() -> None:
    job = running(2, most=2)
    job.go("b0")
    job.come("f")
    job.next()
    job.come("s")
    job.tell("a0", ready=2, draining=True)
    assert job.ask().plan is None, "a0 alone is current: f has its state yet to come"
    job.tell("f", ready=2)
    job.next()
    assert job.seats() == ["s", "f"]


def test_the_only_holder_of_the_state_stays_until_another_one_is_current_though_it_drains() -> None:
    job = running(2, most=2)
    job.go("b0")
    job.next()
    job.leave("a0", incomplete=2, committed=Version(1, 7))
    job.tell("a0", draining=True)
    job.come("n")
    assert job.next().target == Version(1, 7)
    assert job.seats() == ["a0", "n"]
    assert job.ask().plan is None
    job.tell("a0", ready=3)
    assert job.ask().plan is None
    job.tell("n", ready=3)
    job.next()
    assert job.seats() == ["n"]


# ---------------------------------------------------------------- undecided comparisons


def undecided(*ways: tuple[str, Version | None, Version | None], pipe: int = 1, **spec: Any) -> Job:
    """A job of two replicas that has lost nobody and whose comparison in generation 2 ended incomplete."""
    job = running(2, pipe, most=2, **spec)
    job.leave("a0")
    job.next()
    for worker, committed, prepared in ways:
        job.leave(worker, incomplete=2, committed=committed, prepared=prepared)
    return job


def test_an_incomplete_comparison_waits_until_everybody_has_told_its_state() -> None:
    job = undecided(("a0", Version(1, 7), None))
    outcome = job.ask()
    assert outcome.plan is None
    assert "b0" in outcome.reason


def test_the_leader_decides_on_the_newest_version_of_which_a_complete_set_lives() -> None:
    seven, eight = Version(1, 7), Version(1, 8)
    job = undecided(("a0", seven, eight), ("a1", seven, None), ("b0", seven, None), ("b1", eight, None), pipe=2)
    plan = job.next()
    assert (plan.target, plan.restore, plan.broken) == (eight, False, 2)
    assert job.seats()[0] == "a0 b1"
    assert "decides" in plan.reason


def test_a_later_generation_beats_a_later_step() -> None:
    job = undecided(("a0", Version(1, 9), None), ("b0", Version(2, 8), None))
    assert job.next().target == Version(2, 8)


def test_before_the_first_step_all_start_anew() -> None:
    job = Job(most=2)
    job.come("a0")
    job.come("b0")
    job.next()
    job.leave("a0")
    job.next()
    job.leave("a0", incomplete=2)
    job.leave("b0", incomplete=2)
    plan = job.next()
    assert (plan.restore, plan.target, plan.origin) == (True, Version(3, 0), 3)
    assert "nobody has trained" in plan.reason


@pytest.mark.parametrize("hint", [{"pristine": False}, {"prepared": Version(1, 1)}])
def test_nothing_starts_anew_if_somebody_may_have_trained(hint: dict[str, Any]) -> None:
    job = Job(pipe=2, most=1)
    job.come("a0", 0)
    job.come("a1", 1)
    job.next()
    job.go("a1")
    job.next()
    job.come("n", 1)
    job.next()
    job.leave("n", incomplete=3)
    job.leave("a0", incomplete=3, **hint)
    plan = job.next()
    assert plan.state == LOST
    assert "is lost" in plan.reason
    assert job.ask().plan is None


# ---------------------------------------------------------------- the end, and what is refused


def test_the_job_is_finished_when_all_have_finished() -> None:
    job = running(2, most=2)
    job.tell("a0", finished=True)
    assert job.ask().plan is None
    job.tell("b0", finished=True)
    assert job.next().state == FINISHED
    assert job.ask().plan is None


def test_a_loss_after_the_last_step_is_nothing_while_each_coordinate_has_finished() -> None:
    job = running(2, pipe=2, most=2)
    for worker in ("a0", "b1"):
        job.tell(worker, finished=True)
    job.go("a1", "b0")
    assert job.next().state == FINISHED


def test_who_has_finished_still_brings_the_others_to_the_last_step() -> None:
    job = running(2, most=2)
    job.tell("a0", finished=True)
    job.leave("b0")
    plan = job.next()
    assert (plan.state, job.seats(), plan.broken) == (RUNNING, ["a0", "b0"], 1)
    job.come("late")
    job.spec = replace(job.spec, max_replicas=3)
    assert job.ask().plan is None, "nobody joins for the end"


def test_a_coordinate_lost_before_it_finished_is_a_loss() -> None:
    job = running(1, pipe=2, most=1)
    job.tell("a0", finished=True)
    job.go("a1")
    assert job.next().state == WAITING


def test_the_job_has_finished_although_too_few_are_left_to_go_on() -> None:
    job = running(2, least=2, most=2)
    job.go("b0")
    job.next()
    job.tell("a0", finished=True)
    assert job.next().state == FINISHED


def test_a_finished_job_begins_anew_only_when_its_members_are_gone() -> None:
    job = running(2, most=2)
    job.tell("a0", finished=True)
    job.tell("b0", finished=True)
    job.next()
    job.come("late")
    assert job.ask().plan is None
    job.go("a0", "b0")
    plan = job.next()
    assert (plan.generation, plan.restore, plan.origin) == (3, True, 3)


def test_the_fixed_axes_cannot_change() -> None:
    job = running(2, pipe=2, most=2)
    job.spec = Spec(Axes(pipe=1), 1, 2)
    outcome = job.ask()
    assert outcome.plan is None
    assert "cannot change" in outcome.reason


@pytest.mark.parametrize("forget", [True, False])
def test_a_plan_that_the_store_lost_is_not_built_upon(forget: bool) -> None:
    job = running(2, most=2)
    old = job.plan
    job.leave("a0")
    job.next()
    job.run()
    job.plan = None if forget else old
    outcome = job.ask()
    assert outcome.plan is None
    assert "written back" in outcome.reason


# ---------------------------------------------------------------- properties


EVENTS = ("lose", "come", "drain", "run", "report", "scale", "renew", "undecided")
MORE = ("die", "evict", "miss", "rest")


@st.composite
def stories(draw: st.DrawFn, events: tuple[str, ...] = EVENTS) -> tuple[Job, list[tuple[str, int]]]:
    """A job of some shape, and what befalls it: (event, which of those to whom it can happen)."""
    pipe, most = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    desired = draw(st.none() | st.integers(1, most))
    least = draw(st.integers(1, desired or most))
    job = Job(pipe, least, most, desired)
    for k in range(draw(st.integers(0, pipe * most + 2))):
        job.come(f"w{k:02}", k % pipe, host=f"h{k // 2}")
    return job, draw(st.lists(st.tuples(st.sampled_from(events), st.integers(0, 30)), max_size=12))


def happen(job: Job, event: str, pick: int, k: int, draining: bool = True) -> None:
    here = sorted(job.seen)
    worker = here[pick % len(here)] if here else None
    if event == "come":
        job.come(f"x{k:02}", pick % job.spec.axes.size, host=f"h{pick % 3}")
    elif event == "scale":
        spread = job.spec.max_replicas - job.spec.min_replicas + 1
        job.spec = replace(job.spec, desired=job.spec.min_replicas + pick % spread)
    elif event == "run" and job.plan is not None:
        for name in job.plan.names & {o.member.name for o in job.seen.values()}:
            job.tell(
                name.worker_id, ready=job.plan.generation, pristine=False, committed=Version(job.plan.generation, 1)
            )
    elif event == "undecided" and job.plan is not None and job.plan.names:
        for w in here:
            made = Version(1 + pick % job.plan.generation, 1) if (pick + int(w[1:])) % 3 else None
            job.leave(w, committed=made, pristine=made is None)
        for name in job.plan.names & {o.member.name for o in job.seen.values()}:
            job.leave(name.worker_id, incomplete=job.plan.generation)
    elif worker is None:
        return
    elif event == "lose":
        job.go(worker)
    elif event == "drain" and draining:
        job.tell(worker, draining=True)
    elif event == "renew":
        old = job.seen[worker].member
        job.come(worker, old.coordinate or 0, incarnation=old.incarnation + "+", host=old.host)
    elif event == "report" and job.plan is not None and job.seen[worker].member.name in job.plan.names:
        job.leave(worker)
    elif event == "die":
        job.tell(worker, dead=True)
    elif event in ("evict", "rest"):
        names = {job.seen[w].member.name for w in {worker, here[pick // 2 % len(here)]}}
        evict = dict.fromkeys(names if event == "evict" else (), "they hang")
        job.findings = Findings(evict, resting={n.worker_id for n in names})
    elif event == "miss" and job.plan is not None:
        for n in job.plan.names & job.here():
            others = tuple(o for o in sorted(job.plan.names) if (int(o.worker_id[1:]) + pick) % 3 == 0 and o != n)
            job.leave(n.worker_id, absent=others)


def follows(new: Plan, old: Plan, here: set[Name]) -> None:
    """What holds between a plan and its successor, whatever has happened."""
    assert new.generation == old.generation + 1
    assert new.broken >= old.broken
    assert new.broken < new.generation
    assert new.reason
    standing = {replica.names: replica for replica in old.replicas}
    was = {place.name: place.since for replica in old.replicas for place in replica.places}
    was |= {f.name: f.since for f in old.former if f.placed == old.placed}
    for replica in new.replicas:
        before = standing.get(replica.names)
        assert replica.formed == (before.formed if before else new.generation)
        assert before is None or replica.slot == before.slot
        for place in replica.places:
            assert place.since == was.get(place.name, new.generation)
    assert len({replica.slot for replica in new.replicas}) == len(new.replicas)
    assert sum(len(replica.places) for replica in new.replicas) == len(new.names)
    assert new.names <= here
    assert {f.name for f in new.former} == ({*old.names, *(f.name for f in old.former)} & here) - new.names


def keeps_the_state(new: Plan, old: Plan, job: Job) -> None:
    """Whom a plan has put out is named, and none of them alone held what was committed at its coordinate."""
    here = {o.member.name for o in job.seen.values() if not o.member.dead}
    out = set(new.evicted) - set(old.evicted)
    assert set(new.restart) == out | (set(old.restart) & here) - new.names
    assert not new.names.intersection(new.evicted)
    past = history(old)
    living = {o.member.name: o.member for o in job.seen.values() if is_here(o.member, old, past)}
    current = {name for name in old.names & living.keys() if living[name].ready >= past[name].since}
    for coordinate in {past[name].coordinate for name in out}:
        assert not (held := {n for n in current if past[n].coordinate == coordinate}) or held - out


@settings(deadline=None, max_examples=150)
@given(stories(EVENTS + MORE))
def test_one_change_makes_one_plan_and_every_plan_follows_from_the_one_before(
    story: tuple[Job, list[tuple[str, int]]],
) -> None:
    job, events = story
    for k, (event, pick) in enumerate([("scale", 0), *events]):
        happen(job, event, pick, k)
        old = job.plan or Plan(0, "", WAITING)
        outcome = job.ask()
        assert job.ask() == outcome
        if outcome.plan is None:
            continue
        job.plan = outcome.plan
        follows(outcome.plan, old, job.here())
        keeps_the_state(outcome.plan, old, job)
        more = job.ask().plan
        spared = set(job.findings.evict) - set(outcome.plan.evicted)  # this plan may make up for one of them
        assert more is None or spared & set(more.evicted), "the same members and reports lead to nothing more"


@settings(deadline=None, max_examples=150)
@given(stories())
def test_a_loss_never_touches_an_intact_replica(story: tuple[Job, list[tuple[str, int]]]) -> None:
    job, events = story
    for k, (event, pick) in enumerate(events):
        old, wanted = job.plan, job.spec.wanted
        happen(job, event, pick, k, draining=False)
        outcome = job.ask()
        if outcome.plan is None:
            continue
        job.plan = outcome.plan
        if old is None or event in ("scale", "undecided") or outcome.plan.state != RUNNING:
            continue
        here = {o.member.name for o in job.seen.values()}
        intact = [replica for replica in old.replicas if here.issuperset(replica.names)][:wanted]
        if not is_needed_elsewhere(job, old, {name for replica in intact for name in replica.names}):
            assert set(intact) <= set(outcome.plan.replicas)


def is_needed_elsewhere(job: Job, old: Plan, intact: set[Name]) -> bool:
    """Whether at some coordinate only survivors of broken replicas are current: one of them gets a place (rule 5)."""
    ready = {o.member.name: o.member.ready for o in job.seen.values() if not o.member.dead}
    columns = zip(*(replica.places for replica in old.replicas), strict=True)
    current = [{p.name for p in column if ready.get(p.name, -1) >= p.since} for column in columns]
    return any(names and not names & intact for names in current)


@settings(deadline=None, max_examples=150)
@given(stories())
def test_no_whole_replica_is_left_unformed(story: tuple[Job, list[tuple[str, int]]]) -> None:
    job, events = story
    for k, (event, pick) in enumerate(events):
        happen(job, event, pick, k, draining=False)
        job.plan = job.ask().plan or job.plan
        if job.plan is not None and job.plan.state == LOST:
            return
        columns = [0] * job.spec.axes.size
        for o in job.seen.values():
            columns[o.member.coordinate or 0] += 1
        possible = min(*columns, job.spec.wanted)
        if possible >= job.spec.min_replicas:
            assert job.plan is not None
            assert len(job.plan.replicas) == possible, job.plan.reason
        else:
            assert job.plan is None or job.plan.state == WAITING


def test_thousands_of_members_are_planned_quickly() -> None:
    job = Job(pipe=4, most=500)
    for k in range(2000):
        job.come(f"w{k:04}", k % 4, host=f"h{k // 8}")
    assert len(job.next().replicas) == 500
    job.run()
    job.go("w0000", "w1001")
    plan = job.next()
    assert len(plan.replicas) == 499, "the survivors of the two broken replicas make one"
    apart = [replica for replica in plan.replicas if len({place.host for place in replica.places}) > 1]
    assert [replica.formed for replica in apart] == [2]

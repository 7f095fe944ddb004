"""Where a job begins, and where it goes back to when state is lost: the newest checkpoint that everybody can read."""

from __future__ import annotations

import pytest
from tests.unit.planning import Job, running

from reknit.rendezvous.places import Candidate, as_restored, newest_restorable, places_for
from reknit.rendezvous.records import LOST, RUNNING, WAITING, Name, Version


def told(job: Job, generation: int) -> None:
    """Everybody with a place has left the newest generation, as its comparison decided nothing."""
    assert job.plan is not None
    for name in job.plan.names:
        job.tell(name.worker_id, left=generation, incomplete=generation)


def without_stage_1(**restorable: tuple[int, ...]) -> Job:
    """Both workers of stage 1 were lost, newcomers have taken their places, and nobody can compare."""
    job = running(2, pipe=2, most=2)
    for worker in ("a0", "b0"):
        job.tell(worker, pristine=False, restorable=restorable.get(worker, ()))
    job.go("a1", "b1")
    assert job.next().state == WAITING
    job.leave("a0", "b0")
    for worker in ("n1", "m1"):
        job.come(worker, 1, restorable=restorable.get(worker, ()))
    plan = job.next()
    assert (plan.state, plan.target) == (RUNNING, None)
    told(job, plan.generation)
    return job


# ---------------------------------------------------------------- a job begins


def test_a_job_begins_from_the_newest_checkpoint_that_every_coordinate_has() -> None:
    job = Job(pipe=2, most=2)
    for worker, coordinate, steps in [("a0", 0, (300, 200)), ("b0", 0, ()), ("a1", 1, (200, 100)), ("b1", 1, (100,))]:
        job.come(worker, coordinate, restorable=steps)
    plan = job.next()
    assert (plan.restore, plan.target, plan.origin) == (True, Version(1, 200), 1)
    assert plan.reason == "a0, a1, b0, b1 joined; starts from the checkpoint of step 200"
    assert job.ask().plan is None


def test_without_a_checkpoint_it_begins_with_what_the_scripts_built() -> None:
    job = Job(most=1)
    job.come("a0")
    plan = job.next()
    assert (plan.restore, plan.target, plan.reason) == (True, Version(1, 0), "a0 joined")


def test_a_checkpoint_that_a_coordinate_does_not_see_is_named() -> None:
    job = Job(pipe=2, most=1)
    job.come("a0", 0, restorable=(300,))
    job.come("a1", 1)
    plan = job.next()
    assert plan.target == Version(1, 0)
    assert "starts at step 0: the checkpoint of step 300 is not there for every coordinate" in plan.reason


def test_who_sees_the_newest_checkpoint_gets_a_place_when_a_job_begins() -> None:
    job = Job(pipe=2, most=1)
    for worker, coordinate, steps in [("a0", 0, (100,)), ("b0", 0, (200, 100)), ("a1", 1, (200, 100)), ("b1", 1, ())]:
        job.come(worker, coordinate, restorable=steps)
    assert job.next().target == Version(1, 200)
    assert job.seats() == ["b0 a1"]
    assert job.ask().plan is None


# ---------------------------------------------------------------- state is lost


def test_a_lost_stage_comes_back_from_the_checkpoint() -> None:
    job = without_stage_1(a0=(300, 200), b0=(200,), n1=(300, 200))
    head = job.plan and job.plan.generation
    assert head
    plan = job.next()
    assert (plan.state, plan.restore, plan.target) == (RUNNING, True, Version(head + 1, 300))
    assert (plan.broken, plan.origin) == (head, head + 1)
    assert plan.reason == (
        "the state of coordinate (pipe.model) 1.0 is lost: the job goes on from the checkpoint of step 300"
    )
    assert len(plan.replicas) == 2
    assert job.ask().plan is None


def test_what_turned_out_to_be_damaged_leads_to_an_older_one() -> None:
    job = without_stage_1(a0=(300, 200), n1=(300, 200))
    plan = job.next()
    told(job, plan.generation)
    job.tell("a0", committed=plan.target)  # it could read its part
    job.tell("n1", restorable=(200,))  # it could not
    again = job.next()
    assert again.target == Version(plan.generation + 1, 200)
    told(job, again.generation)
    job.tell("n1", restorable=())
    assert job.next().state == LOST


def test_if_all_could_restore_before_it_broke_off_they_go_on_from_there() -> None:
    job = without_stage_1(a0=(300,), n1=(300,))
    plan = job.next()
    told(job, plan.generation)
    for name in plan.names:
        job.tell(name.worker_id, committed=plan.target, pristine=False)
    again = job.next()
    assert (again.restore, again.target) == (False, plan.target)


def test_a_job_that_has_just_begun_from_a_checkpoint_does_not_fall_back_to_step_0() -> None:
    job = Job(pipe=2, most=2)
    for worker, coordinate in [("a0", 0), ("b0", 0), ("a1", 1), ("b1", 1)]:
        job.come(worker, coordinate, restorable=(300,))
    job.next()
    job.leave("a0", "b0", "a1", "b1", incomplete=1)
    plan = job.next()
    assert (plan.restore, plan.target) == (True, Version(2, 300))
    assert plan.reason.startswith("nobody has trained yet, as a0 shows: the job goes on from the checkpoint")


def test_without_any_checkpoint_the_state_is_lost() -> None:
    plan = without_stage_1().next()
    assert plan.state == LOST
    assert plan.reason.endswith("no checkpoint can be gone back to: there is none")
    plan = without_stage_1(a0=(300,)).next()
    assert plan.state == LOST
    assert plan.reason.endswith("that of step 300 is not there for every coordinate")


def test_a_whole_state_that_lives_comes_before_any_checkpoint() -> None:
    job = running(2, pipe=1, most=2)
    job.tell("a0", restorable=(900,))
    job.leave("a0", "b0", incomplete=1)
    plan = job.next()
    assert (plan.restore, plan.target) == (False, Version(1, 7))


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("able", "step"),
    [([{300, 200}, {200}], 200), ([{300}, {200}], 0), ([{300}, set()], 0), ([{200, 300}, {300, 200}], 300)],
)
def test_a_checkpoint_counts_if_somebody_at_each_coordinate_can_restore_it(able: list[set[int]], step: int) -> None:
    people = [Candidate(Name(str(c), "1"), c, restorable=frozenset(found)) for c, found in enumerate(able)]
    assert newest_restorable([*people, Candidate(Name("fresh", "1"))], 2) == step


def test_those_who_can_restore_are_placed_first() -> None:
    people = [Candidate(Name(w, "1"), 0, restorable=frozenset({300} if w == "c" else ())) for w in "abc"]
    version = Version(9, 300)
    assert places_for(version, as_restored(people, version), 1, 1) == ((Name("c", "1"),),)

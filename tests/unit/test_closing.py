"""A job of which everybody leaves: its state goes into a last checkpoint, nobody has to stay, it can begin again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.planning import PATIENCE, Job, running

from reknit.rendezvous.closing import WHY
from reknit.rendezvous.draining import may_end
from reknit.rendezvous.kinds import BEGIN, DRAIN
from reknit.rendezvous.records import WAITING, Member, Name, Version


def members(job: Job) -> list[Member]:
    return [o.member for o in job.seen.values()]


def drained(pipe: int = 1, **spec: int) -> Job:
    """Two replicas that all drain, and would otherwise go on."""
    job = running(2, pipe, **spec)
    for worker in list(job.seen):
        job.tell(worker, draining=True, keeps=True)
    return job


def closed(job: Job, step: int = 7) -> None:
    assert job.plan is not None
    for name in job.plan.names:
        job.tell(name.worker_id, closed=job.plan.generation, restorable=(step,))


def test_all_drain_so_the_last_ones_stop_and_once_each_sees_the_checkpoint_nobody_has_a_place() -> None:
    job = drained(pipe=2)
    plan = job.next()
    assert (plan.closing, plan.kind, job.seats(), plan.broken) == (True, DRAIN, ["a0 a1"], 0)
    assert plan.reason == f"b0, b1 drained; {WHY}"
    job.run(Version(2, 8))
    assert "waiting for the last checkpoint to be complete, as a0, a1 see it" in job.ask().reason
    closed(job, 8)
    plan = job.next()
    assert (plan.state, plan.replicas, plan.former, plan.placed, plan.closing) == (WAITING, (), (), 0, False)
    assert plan.reason == "all members drain, and the job waits for new ones: its state is in the checkpoint of step 8"
    assert job.ask().plan is None


def test_then_all_may_end_at_once_and_the_last_ones_not_before() -> None:
    job = drained()
    job.next()
    job.run(Version(1, 7))
    job.leave("b0")
    assert not may_end(job.plan, members(job), Name("b0", "1")), "it may yet be needed"
    assert not may_end(job.plan, members(job), Name("a0", "1"))
    closed(job)
    assert not may_end(job.plan, members(job), Name("a0", "1"))
    job.next()
    assert all(may_end(job.plan, members(job), Name(worker, "1")) for worker in ("a0", "b0"))


def test_who_was_here_as_the_job_stopped_looks_for_checkpoints_anew_before_it_begins() -> None:
    job = drained(most=1)
    job.come("n", restorable=(4,))
    job.next()
    job.run(Version(2, 8))
    closed(job, 8)
    plan = job.next()
    assert plan.placed == 0
    job.go("a0", "b0")
    assert job.ask().plan is None, "what it knows is from before the last checkpoint"
    job.tell("n", restorable=(8, 4), left=plan.generation)
    assert job.next().target == Version(plan.generation + 1, 8)


def test_a_stop_for_which_there_is_no_reason_any_more_ends() -> None:
    job = drained(least=2)
    job.next()
    job.run(Version(1, 7))
    job.tell("a0", draining=False)
    plan = job.next()
    assert (plan.closing, job.seats()) == (False, ["a0", "b0"])
    assert job.ask().plan is None


def test_the_job_goes_on_from_there_with_whoever_comes() -> None:
    job = drained()
    job.next()
    job.run(Version(2, 8))
    closed(job, 8)
    job.next()
    job.come("n", restorable=(8, 4))
    assert "may follow" in job.ask(0.0).reason, "others may come, as at any beginning"
    plan = job.next()
    assert (job.seats(), plan.kind, plan.restore, plan.target) == (["n"], BEGIN, True, Version(4, 8))
    job.go("a0", "b0")
    assert job.ask().plan is None, "those who have left are no loss"


@pytest.mark.parametrize("stays", [{"draining": False}, {"keeps": False}])
def test_with_one_who_stays_or_without_checkpoints_nothing_stops(stays: dict[str, bool]) -> None:
    job = running(2, least=2)
    for worker in ("a0", "b0"):
        job.tell(worker, draining=True, keeps=True)
    job.tell("a0", **stays)
    assert job.ask().plan is None


def test_more_are_waited_for_as_with_any_drain() -> None:
    job = drained()
    for worker in ("a0", "b0"):
        job.tell(worker, at=10.0)
    outcome = job.ask(10.0)
    assert (outcome.plan, outcome.again) == (None, 10.0 + PATIENCE.burst)


def test_who_comes_meanwhile_takes_over_and_the_job_goes_on() -> None:
    job = drained()
    job.next()
    job.run(Version(1, 7))
    for worker in ("n", "o"):
        job.come(worker)
    plan = job.next()
    assert not plan.closing
    assert {"n", "o"} <= {name.worker_id for name in plan.names}
    assert plan.target is None, "from the state that lives, not from a checkpoint"


def test_the_loss_of_one_ends_the_stop_and_the_others_begin_another() -> None:
    job = drained(least=2)
    assert job.next().reason == f"all members drain: {WHY}"
    job.run(Version(1, 7))
    closed(job)
    job.spec = replace(job.spec, min_replicas=1)
    job.go("b0")
    plan = job.next()
    assert (plan.closing, job.seats()) == (False, ["a0"])
    job.run(Version(1, 7))
    plan = job.next()
    assert (plan.closing, job.seats()) == (True, ["a0"])
    assert "waiting for" in job.ask().reason, "what it found in the generation before is no answer"


def test_before_the_first_step_there_is_nothing_to_keep() -> None:
    job = drained()
    job.next()
    job.run(Version(1, 0))
    assert job.plan is not None
    job.tell("a0", closed=job.plan.generation)
    assert job.next().reason.endswith("it has made no step yet")
    job.go("a0", "b0")
    job.come("n")
    assert job.next().kind == BEGIN


def test_a_last_step_comes_before_a_last_checkpoint() -> None:
    job = drained()
    for worker in ("a0", "b0"):
        job.tell(worker, finished=True)
    assert job.next().reason == "all 2 members have finished"


def test_who_makes_the_last_step_meanwhile_is_not_kept_waiting_by_those_who_stopped() -> None:
    job = drained(least=2)
    job.next()
    job.run(Version(1, 7))
    job.tell("a0", finished=True)
    plan = job.next()
    assert (plan.closing, job.seats()) == (False, ["a0", "b0"])
    assert job.ask().plan is None
    job.tell("b0", finished=True)
    assert job.next().reason == "all 2 members have finished"

"""Members that are lost or put out: who counts as gone, what the plan says of them, and how a burst is met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.planning import Job, running

from reknit.rendezvous.plan import Findings, forgiven, history, is_here, runs
from reknit.rendezvous.records import FINISHED, RUNNING, WAITING, Name

HUNG = "c0 hangs: its script has been busy in 'forward' for 31 s while a0 waits for it"


def name(worker: str, incarnation: str = "1") -> Name:
    return Name(worker, incarnation)


def put_out(job: Job, **sentences: str) -> None:
    job.findings = Findings(evict={name(worker): sentence for worker, sentence in sentences.items()})


# ---------------------------------------------------------------- the dead


def test_a_tombstone_is_a_loss() -> None:
    job = running(3)
    job.tell("b0", dead=True)
    plan = job.next(now=0.0)
    assert (job.seats(), plan.broken, plan.former, plan.spares) == (["a0", "c0"], 1, (), ())
    assert plan.reason == "lost b0"
    assert (plan.evicted, plan.restart, plan.offences) == ((), (), ()), "nobody put it out"
    assert job.ask().plan is None


def test_a_tombstone_of_a_process_without_a_place_changes_nothing() -> None:
    job = running(2, most=2)
    job.come("spare", dead=True)
    assert job.ask().plan is None


def test_a_dead_member_does_not_run() -> None:
    job = running(2, most=2)
    assert job.plan is not None
    assert runs(job.plan, [o.member for o in job.seen.values()])
    job.tell("a0", dead=True)
    assert not runs(job.plan, [o.member for o in job.seen.values()])


def test_why_somebody_is_lost_is_said_once_for_all_of_one_cause() -> None:
    job = running(4, most=4)
    job.go("a0", "c0", "d0")
    cause = "agent a does not answer (b0 saw its connections close)"
    job.findings = Findings(causes={name("a0"): cause, name("d0"): cause})
    assert job.next().reason == f"lost c0; lost a0, d0: {cause}"


def test_of_many_causes_only_the_first_are_told() -> None:
    job = running(6, most=6)
    job.findings = Findings(causes={name(f"{replica}0"): f"agent {replica} does not answer" for replica in "abcde"})
    job.go(*(f"{replica}0" for replica in "abcde"))
    reason = job.next(now=0.0).reason
    assert reason.startswith("lost a0: agent a does not answer; lost b0: agent b")
    assert reason.endswith("lost d0: agent d does not answer; and 1 more cause")


# ---------------------------------------------------------------- put out


def test_who_is_put_out_is_named_and_asked_to_start_afresh() -> None:
    job = running(3)
    put_out(job, c0=HUNG)
    plan = job.next(now=0.0)
    assert (job.seats(), plan.reason, plan.broken) == (["a0", "b0"], HUNG, 1)
    assert (plan.evicted, plan.restart, plan.offences) == ((name("c0"),), (name("c0"),), (("c0", 1),))
    assert (plan.former, plan.spares) == ((), ())
    assert job.ask().plan is None, "the same finding leads to nothing more"


def test_who_was_put_out_gets_no_place_again_while_its_record_stands() -> None:
    job = running(3)
    put_out(job, c0=HUNG)
    job.next()
    job.run()
    job.come("d0")
    plan = job.next()
    assert (job.seats(), plan.evicted) == (["a0", "b0", "d0"], (name("c0"),))
    assert plan.restart == (name("c0"),), "an agent may have seen only this plan"
    assert plan.offences == (("c0", 1),)
    job.run()
    job.come("c0", incarnation="2")
    job.spec = replace(job.spec, max_replicas=4)
    plan = job.next()
    assert (len(job.seats()), plan.evicted) == (4, ()), "its next incarnation does, and the old name is forgotten"
    assert plan.offences == (("c0", 1),), "but not what it has done"


def test_a_member_that_never_came_to_a_generation_stays_out_once_it_was_put_out() -> None:
    job = running(2)
    job.come("n")
    job.next()
    assert "n" in job.seats()
    put_out(job, n="n cannot be reached")
    plan = job.next()
    assert (job.seats(), plan.evicted) == (["a0", "b0"], (name("n"),))
    job.run()
    assert job.ask().plan is None
    past, out = history(plan), job.seen["n"].member
    assert not is_here(out, plan, past)
    assert not is_here(replace(job.seen["a0"].member, dead=True), plan, past)
    assert is_here(job.seen["a0"].member, plan, past)


def test_a_former_member_is_put_out_although_nobody_needs_to_hear_of_a_loss() -> None:
    job = running(3)
    job.spec = replace(job.spec, desired=2)
    job.next()
    job.run()
    put_out(job, c0=HUNG)
    plan = job.next()
    assert (job.seats(), plan.evicted, plan.former) == (["a0", "b0"], (name("c0"),), ())


@pytest.mark.parametrize("fields", [{"dead": True}, {}])
def test_who_has_no_place_is_not_put_out(fields: dict[str, Any]) -> None:
    job = running(2, most=2)
    job.come("spare", **fields)
    put_out(job, spare="it is in the way")
    assert job.ask().plan is None


def test_offences_add_up_and_can_be_forgiven() -> None:
    job = running(3)
    put_out(job, c0=HUNG)
    job.next()
    job.come("c0", incarnation="2")
    job.next()
    job.run()
    job.findings = Findings(evict={name("c0", "2"): HUNG, name("b0"): "b0 hangs"})
    plan = job.next()
    assert plan.offences == (("b0", 1), ("c0", 2))
    assert forgiven(plan, {"c0"}).offences == (("b0", 1),)


def test_the_only_holder_of_a_coordinate_stays_and_the_leader_says_why() -> None:
    job = running(1, pipe=2, most=1)
    put_out(job, a1="a1 hangs")
    outcome = job.ask()
    assert outcome.plan is None
    assert outcome.reason.endswith("a1 stays (a1 hangs): nobody else with a place holds the state of coordinate 1.0")


def test_one_of_two_holders_stays() -> None:
    job = running(2, pipe=2, most=2)
    put_out(job, a0="a0 hangs", b0="b0 hangs")
    plan = job.next()
    assert (plan.evicted, plan.state, job.seats()) == ((name("a0"),), RUNNING, ["b0 b1"])


def test_who_holds_all_that_was_committed_stays_while_the_other_one_has_yet_to_be_healed() -> None:
    job = running(1, most=2)
    job.come("n")
    job.next()
    put_out(job, a0="a0 hangs")
    assert job.ask().plan is None
    put_out(job, n="n hangs")
    assert job.next().evicted == (name("n"),)


def test_a_job_that_waits_for_one_that_is_put_out_at_the_last_step_has_finished_without_it() -> None:
    job = running(3)
    job.tell("a0", finished=True)
    job.tell("b0", finished=True)
    put_out(job, c0=HUNG)
    plan = job.next()
    assert (plan.state, plan.evicted, plan.restart) == (FINISHED, (name("c0"),), (name("c0"),))


# ---------------------------------------------------------------- the cool-down


def test_a_fresh_process_of_a_resting_worker_gets_no_place() -> None:
    job = running(2)
    job.come("c0", incarnation="2")
    job.findings = Findings(resting={"c0"})
    assert job.ask().plan is None
    job.findings = Findings()
    job.next()
    assert job.seats() == ["a0", "b0", "c0"]


def test_who_sits_keeps_its_place_though_its_worker_should_rest() -> None:
    job = running(3)
    job.findings = Findings(resting={"a0", "c0"})
    assert job.ask().plan is None
    job.go("b0")
    job.next()
    assert job.seats() == ["a0", "c0"]


# ---------------------------------------------------------------- bursts


def test_the_first_loss_acts_at_once_and_those_after_it_share_a_plan() -> None:
    job = running(5, most=5)
    job.go("a0")
    outcome = job.ask(now=10.0)
    assert outcome.loss
    job.next(now=10.0)
    job.findings = Findings(lost_at=10.0)
    for worker, now in (("b0", 10.05), ("c0", 10.1)):
        job.go(worker)
        outcome = job.ask(now=now)
        assert outcome.plan is None
        assert outcome.again == pytest.approx(10.15)
    plan = job.next(now=10.15)
    assert (plan.generation, job.seats(), plan.reason) == (3, ["d0", "e0"], "lost b0, c0")


def test_a_burst_does_not_delay_a_loss_long_after_it_nor_one_that_is_put_out() -> None:
    job = running(4, most=4)
    job.go("a0")
    job.next(now=10.0)
    job.findings = Findings(lost_at=10.0)
    job.go("b0")
    assert job.ask(now=11.0).plan is not None
    job.findings = Findings({name("c0"): HUNG}, lost_at=10.0)
    plan = job.next(now=10.05)
    assert plan.reason == f"lost b0; {HUNG}"
    assert job.seats() == ["d0"]


def test_what_is_no_loss_does_not_begin_a_burst() -> None:
    job = running(2, most=2)
    job.leave("a0")
    assert not job.ask().loss
    job.come("n")
    job.tell("a0", draining=True, left=0)
    assert not job.ask().loss


def test_below_the_minimum_a_loss_is_still_one() -> None:
    job = running(2, least=2, most=2)
    job.tell("b0", dead=True)
    outcome = job.ask()
    assert outcome.plan is not None
    assert (outcome.plan.state, outcome.loss) == (WAITING, True)

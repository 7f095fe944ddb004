"""Reports of a broken generation: what those who are named in them have to do with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.planning import Job, running

from reknit.rendezvous.plan import Findings, Outcome
from reknit.rendezvous.records import BUSY, LONG, SILENT, WAITS, Name, Stall, Version

GRACE, ANSWER = 0.1, 1.0


def name(worker: str) -> Name:
    return Name(worker, "1")


def report(job: Job, worker: str, at: float, gone: str = "", absent: str = "") -> None:
    """`worker` leaves the newest generation, knowing nothing newer."""
    assert job.plan is not None
    named = {"gone": tuple(map(name, gone.split())), "absent": tuple(map(name, absent.split()))}
    job.tell(worker, at=at, left=job.plan.generation, **named)


def connecting(replicas: int = 3, pipe: int = 1) -> Job:
    """A job whose generation 2 is being connected: everybody has left generation 1 for it."""
    job = running(replicas, pipe, most=replicas)
    job.leave("a0")
    job.next()
    for worker in job.seen:
        job.tell(worker, left=1)
    return job


def wait(outcome: Outcome) -> str:
    assert outcome.plan is None, outcome.reason
    return outcome.reason


# ---------------------------------------------------------------- whose connections were found closed


def test_the_leader_waits_for_those_whose_connections_closed_and_the_loss_comes() -> None:
    job = running(3)
    report(job, "a0", 10.0, gone="c0")
    outcome = job.ask(now=10.5)
    assert "c0 may be lost" in wait(outcome)
    assert outcome.again == pytest.approx(10.0 + GRACE + ANSWER)
    job.tell("c0", at=10.6, dead=True)
    assert job.next(now=10.6).reason == "lost c0"


@pytest.mark.parametrize("shown", [{"left": 1}, {"answered": 1}])
def test_once_they_are_shown_to_live_the_same_members_meet_anew(shown: dict[str, int]) -> None:
    job = running(3)
    report(job, "a0", 10.0, gone="c0")
    job.tell("c0", at=10.02, **shown)
    assert job.ask(now=10.05).again == pytest.approx(10.0 + GRACE)
    plan = job.next(now=10.0 + GRACE)
    assert (job.seats(), plan.broken, plan.evicted) == (["a0", "b0", "c0"], 1, ())


def test_the_leader_does_not_wait_for_an_answer_for_ever() -> None:
    job = running(3)
    report(job, "a0", 10.0, gone="c0")
    plan = job.next(now=10.0 + GRACE + ANSWER)
    assert (job.seats(), plan.evicted) == (["a0", "b0", "c0"], ())


def test_who_has_no_place_any_more_is_not_waited_for() -> None:
    job = running(2, most=2)
    report(job, "a0", 10.0, gone="c0 b7", absent="c0")
    assert job.next(now=10.2).broken == 1


def test_an_answer_to_an_older_accusation_is_none() -> None:
    job = connecting()
    report(job, "a0", 10.0, gone="c0")
    job.tell("c0", answered=1)
    wait(job.ask(now=10.5))


# ---------------------------------------------------------------- who has not come


@pytest.mark.parametrize(
    ("stall", "words"),
    [
        (None, "it is still at work there"),
        (Stall(1, 7, "the forward pass", BUSY, 10.0, 30.0), "it has been busy in the forward pass for 12 s"),
        (Stall(1, 7, "evaluation", LONG, 10.0, 30.0), "it is in evaluation, which it has said takes long, for 12 s"),
        (Stall(1, 7, "reduce", SILENT, 10.0, 30.0), "it has said nothing for 12 s, last in reduce"),
        (Stall(1, 7, "work", WAITS, 10.0, 30.0), "it has waited in work for 12 s"),
    ],
)
def test_who_is_still_inside_an_older_generation_is_waited_for(stall: Stall | None, words: str) -> None:
    job = connecting()
    job.tell("c0", left=0, stall=stall)
    job.seen["c0"] = replace(job.seen["c0"], stalled=98.0)
    report(job, "a0", 100.0, absent="c0")
    report(job, "b0", 100.0, absent="c0")
    outcome = job.ask(now=100.0 + GRACE)
    assert wait(outcome) == f"waiting for c0, which has not come from generation 1: {words}"
    assert outcome.again is None
    wait(job.ask(now=150.0))


def test_who_is_at_work_between_two_generations_is_waited_for() -> None:
    job = connecting()
    job.tell("c0", stall=Stall(1, 7, "between attempts", BUSY, 6.0, 30.0))
    report(job, "a0", 10.0, absent="c0")
    assert "which has not come: it has been busy in between attempts" in wait(job.ask(now=100.0))


def test_when_it_comes_late_all_meet_anew_and_nobody_is_put_out() -> None:
    job = connecting()
    job.tell("c0", left=0)
    report(job, "a0", 10.0, absent="c0")
    report(job, "b0", 10.1, absent="c0 a0")
    wait(job.ask(now=20.0))
    job.tell("c0", at=20.0, left=1)
    plan = job.next(now=20.0)
    assert (plan.reason, job.seats()) == ("c0 came late to generation 2: all meet in a new one", ["a0", "b0", "c0"])
    assert (plan.evicted, plan.broken) == ((), 2)


def test_who_just_comes_and_finds_the_others_gone_is_not_put_out_for_it() -> None:
    job = connecting()
    job.tell("c0", at=9.9)
    for worker in ("a0", "b0"):
        report(job, worker, 10.0, absent="c0")
    report(job, "c0", 10.05, gone="a0 b0")
    plan = job.next(now=10.2)
    assert (plan.evicted, job.seats()) == ((), ["a0", "b0", "c0"])
    assert "not all came in time" in plan.reason


def test_one_that_hangs_where_it_is_waited_for_is_put_out_by_the_verdict() -> None:
    job = connecting()
    job.tell("c0", left=0, stall=Stall(1, 7, "work", BUSY, 40.0, 30.0))
    report(job, "a0", 10.0, absent="c0")
    wait(job.ask(now=40.0))
    job.findings = Findings(evict={name("c0"): "c0 hangs"})
    assert job.next(now=40.0).reason == "c0 hangs"
    assert job.seats() == ["a0", "b0"]


# ---------------------------------------------------------------- who cannot reach whom


def test_who_is_cut_off_is_put_out_by_evidence_from_several() -> None:
    job = connecting()
    report(job, "a0", 10.0, absent="c0")
    assert "may follow" in wait(job.ask(now=10.05))
    report(job, "b0", 10.02, absent="c0")
    assert "c0 may be lost" in wait(job.ask(now=10.2))
    report(job, "c0", 10.3, absent="a0 b0")
    outcome = job.ask(now=10.3)
    plan = job.next(now=10.3)
    assert (job.seats(), plan.broken, outcome.loss) == (["a0", "b0"], 2, True)
    assert (plan.evicted, plan.restart, plan.offences) == ((name("c0"),), (name("c0"),), (("c0", 1),))
    assert plan.reason == "c0 is put out: a0, b0 cannot reach it, and it cannot reach a0, b0"
    assert job.ask(now=20.0).plan is None


def test_who_is_missed_and_says_nothing_is_put_out_when_it_was_waited_for_long_enough() -> None:
    job = connecting(2)
    report(job, "a0", 10.0, absent="b0")
    wait(job.ask(now=11.0))
    assert job.next(now=11.1).evicted == (name("b0"),)


def test_after_an_outage_of_the_store_it_is_waited_for_until_all_have_had_time_to_speak() -> None:
    job = connecting(2)
    report(job, "a0", 10.0, absent="b0")
    job.findings = Findings(settles=70.1)
    assert job.ask(now=70.0).again == 70.1
    report(job, "b0", 70.05)
    assert job.next(now=70.05).evicted == ()


def test_everybody_is_heard_before_somebody_is_put_out() -> None:
    job = connecting()
    report(job, "a0", 10.0, absent="c0")
    report(job, "c0", 10.0, absent="a0")
    assert "b0 may be lost" in wait(job.ask(now=10.2)), "who knows whom b0 misses"
    report(job, "b0", 10.3, absent="a0")
    assert job.next(now=10.3).evicted == (name("a0"),)


def test_one_broken_link_puts_out_one_and_leaves_a_replica_whole() -> None:
    job = connecting(2, pipe=2)
    for worker, missed in (("a0", "b0"), ("b0", "a0"), ("a1", ""), ("b1", "")):
        report(job, worker, 10.0, absent=missed)
    plan = job.next(now=10.2)
    assert (plan.evicted, job.seats()) == ((name("b0"),), ["a0 a1"])
    assert [former.name for former in plan.former] == [name("b1")]


def test_a_new_generation_with_all_if_neither_end_can_be_put_out() -> None:
    job = running(1, pipe=2, most=1)
    job.leave("a0")
    job.next()
    for worker, missed in (("a0", "a1"), ("a1", "a0")):
        report(job, worker, 10.0, absent=missed)
    outcome = job.ask(now=10.2)
    assert "neither can be put out" in wait(outcome)
    assert outcome.again == pytest.approx(10.0 + GRACE + ANSWER), "not again at once, for ever"
    plan = job.next(now=10.0 + GRACE + ANSWER)
    assert (job.seats(), plan.evicted, plan.broken) == (["a0 a1"], (), 2)
    assert plan.reason.endswith("nobody else with a place holds the state of coordinate 1.0; all try again")


def test_the_one_that_holds_the_state_is_not_put_out_for_newcomers_that_cannot_reach_it() -> None:
    job = running(1, most=3)
    for worker in ("x0", "y0"):
        job.come(worker)
    job.next()
    job.tell("a0", left=1)
    for worker, missed in (("a0", "x0 y0"), ("x0", "a0"), ("y0", "a0")):
        report(job, worker, 10.0, absent=missed)
    plan = job.next(now=10.2)
    assert (job.seats(), plan.evicted) == (["a0"], (name("x0"), name("y0")))


def test_an_undecided_comparison_comes_before_what_the_reports_say() -> None:
    job = connecting(2)
    job.leave("a0", "b0", incomplete=2, committed=Version(1, 7), absent=(name("a0"),))
    assert job.next(now=10.0).target == Version(1, 7)

"""Whom the leader waits for although nothing is heard of them: those with whom the job's state would be lost."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from tests.unit.leaders_desk import Desk, member
from tests.unit.planning import PATIENCE, Job, running

from reknit.rendezvous.holders import last_holders
from reknit.rendezvous.plan import Findings
from reknit.rendezvous.records import LOST, RUNNING, Axes, Name, Spec, Version

MISSED = 100.0  # since when


def name(worker: str) -> Name:
    return Name(worker, "1")


def miss(job: Job, *workers: str, since: float = MISSED) -> None:
    """Nothing is heard of them any more."""
    job.go(*workers)
    missed = {name(worker): since for worker in workers}
    job.findings = replace(job.findings, missed={**job.findings.missed, **missed})


def test_who_alone_holds_a_state_and_is_not_heard_of_is_waited_for_up_to_a_limit() -> None:
    job = running(1, pipe=2)
    job.come("fresh0", 0)
    job.come("fresh1", 1)
    miss(job, "a0")
    outcome = job.ask(MISSED + 1)
    limit = MISSED + PATIENCE.holders
    assert (outcome.plan, outcome.again, outcome.grave) == (None, limit, True)
    assert outcome.reason == (
        "nothing is heard of a0, and nobody else holds the state of coordinate (pipe.model) 0.0: waiting for them to "
        "come back, at most 300 s"
    )
    assert job.next(limit).reason == "lost a0"


def test_when_it_is_back_the_same_members_go_on() -> None:
    job = running(1, pipe=2)
    before = job.seen["a0"]
    miss(job, "a0")
    job.leave("a1", gone=(name("a0"),))
    assert job.ask(MISSED + 1).plan is None
    job.seen["a0"] = before
    job.findings = Findings()
    job.leave("a0")
    plan = job.next()
    assert (plan.state, job.seats(), plan.former) == (RUNNING, ["a0 a1"], ())


def test_where_somebody_else_holds_the_state_nobody_waits() -> None:
    job = running(2, pipe=2)
    miss(job, "a0", "a1")
    assert job.next(MISSED).reason == "lost a0, a1"


def test_who_has_yet_to_be_healed_holds_nothing() -> None:
    job = running(1)
    job.come("b0")
    job.next()
    assert job.seats() == ["a0", "b0"]
    miss(job, "a0")
    assert job.ask(MISSED).grave
    job.tell("b0", ready=2)
    assert job.next(MISSED).reason == "lost a0"


def test_before_anybody_has_trained_there_is_nothing_to_lose() -> None:
    job = Job()
    for worker in ("a0", "b0"):
        job.come(worker)
    job.next()
    miss(job, "a0")
    assert job.next(MISSED).reason == "lost a0"


def test_the_dead_are_not_waited_for_nor_is_anybody_if_another_coordinates_state_died_with_them() -> None:
    job = running(1, pipe=2)
    job.tell("a0", dead=True)
    assert job.ask(MISSED).plan is not None
    miss(job, "a1")
    assert job.ask(MISSED).plan is not None
    assert not last_holders({}, {}, 2)


def test_a_finish_does_not_wait() -> None:
    job = running(1, pipe=1)
    job.run(Version(1, 8))
    job.tell("a0", finished=True)
    assert job.next().reason == "all 1 members have finished"


# ---------------------------------------------------------------- the leader


def holder_and_spare() -> tuple[Desk, tuple[Name, ...]]:
    """w0 has trained, w1 is fresh."""
    desk = Desk(Spec(Axes(), 1, 1))
    desk.look(1.0, member(0))
    desk.look(2.0, replace(member(0), ready=1, pristine=False), member(1))
    return desk, tuple(desk.plan.names)


def test_a_leader_says_once_whom_it_waits_for_and_gives_up_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    desk, _ = holder_and_spare()
    with caplog.at_level(logging.WARNING):
        assert [desk.look(now, member(1)) for now in (3.0, 4.0, 302.0)] == [1, 1, 1]
    assert len([r for r in caplog.records if "nothing is heard of w0" in r.message]) == 1
    assert desk.look(303.0, member(1)) > 1


def test_a_member_that_comes_back_in_time_has_missed_nothing() -> None:
    desk, names = holder_and_spare()
    assert desk.look(3.0, member(1)) == 1
    assert desk.look(290.0, replace(member(0), ready=1, pristine=False), member(1)) == 1
    assert tuple(desk.plan.names) == names
    assert desk.look(500.0, member(1)) == 1, "it is missed anew: so the wait begins anew"


@pytest.mark.parametrize("known_by", ["tombstone", "next process"])
def test_nobody_waits_for_one_that_is_known_to_be_dead(known_by: str) -> None:
    desk, _ = holder_and_spare()
    last = replace(member(0), ready=1, pristine=False)
    known = replace(last, dead=True) if known_by == "tombstone" else member(0, incarnation="next", built=False)
    assert desk.look(3.0, known, member(1)) > 1
    assert desk.plan.state != LOST

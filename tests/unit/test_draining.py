"""Leaving on request: who is meant, when a drained worker may end, and what plans make of it."""

from __future__ import annotations

import pytest
from tests.unit.planning import Job, running

from reknit.rendezvous.draining import DrainOrder, decode_order, encode_order, last_holders, may_end, whom
from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.plan import runs
from reknit.rendezvous.records import LOST, WAITING, Member, Name, Plan, Version


def members(job: Job) -> list[Member]:
    return [o.member for o in job.seen.values()]


def may(job: Job, worker: str, patient: bool = True) -> bool:
    return may_end(job.plan, members(job), Name(worker, "1"), patient)


# ---------------------------------------------------------------- orders


def test_an_order_survives_the_store_and_names_its_worker_by_its_key() -> None:
    order = DrainOrder(Name("w0", "a"), 12.5, "somebody")
    assert decode_order(encode_order(order), "/reknit/job/drains/w0") == order


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b'{"incarnation": 1, "seconds": 1}', b'{"incarnation": "a", "seconds": -1}']
)
def test_an_order_that_does_not_fit_is_refused(raw: bytes) -> None:
    with pytest.raises(RecordError):
        decode_order(raw, "/reknit/job/drains/w0")


def test_a_worker_a_host_an_agent_or_a_replica_is_meant() -> None:
    job = running(2, pipe=2)
    job.tell("b0", host="far", agent="other")
    job.tell("b1", dead=True)

    def meant(target: str) -> list[str]:
        return [name.worker_id for name in whom(target, job.plan, members(job))]

    assert meant("a1") == ["a1"]
    assert meant("host") == meant("agent") == ["a0", "a1"]
    assert meant("far") == meant("other") == ["b0"]
    assert meant("replica/0") == ["a0", "a1"]
    assert meant("replica/1") == ["b0"], "the dead need not leave"
    assert meant("replica/7") == meant("nobody") == []
    with pytest.raises(RecordError, match="slot"):
        meant("replica/first")


def test_a_worker_that_is_named_like_a_host_is_meant_before_the_host() -> None:
    job = running(2)
    job.tell("b0", host="a0")
    assert whom("a0", job.plan, members(job)) == [Name("a0", "1")]


# ---------------------------------------------------------------- when it may end


def test_a_drained_worker_stays_until_a_generation_without_it_runs_and_all_have_come_there() -> None:
    job = running(3)
    job.tell("b0", draining=True)
    assert not may(job, "b0"), "it has a place"
    job.next()
    assert not may(job, "b0"), "nobody has come to the new generation yet"
    job.run()
    assert not may(job, "b0"), "it has not left its last generation yet"
    job.leave("b0")
    assert may(job, "b0")


def test_all_who_lost_their_place_leave_first_unless_that_takes_too_long() -> None:
    job = running(2, pipe=2)
    job.tell("b1", draining=True)
    job.next()
    job.run()
    job.leave("b1")
    assert not may(job, "b1"), "b0 is still on its way: without b1 a generation would pass"
    assert may(job, "b1", patient=False)
    job.leave("b0")
    assert may(job, "b1")
    job.go("b1")
    assert job.ask().plan is None


def test_a_dead_mate_is_not_waited_for() -> None:
    job = running(2, pipe=2)
    job.tell("b1", draining=True)
    job.next()
    job.run()
    job.leave("b1")
    job.tell("b0", dead=True)
    assert may(job, "b1")


def test_whoever_never_had_a_place_may_end() -> None:
    job = running(1, most=1)
    job.come("s")
    assert may(job, "s")
    assert may_end(None, [], Name("s", "1"))


@pytest.mark.parametrize("state", [WAITING, LOST])
def test_without_places_nobody_who_had_one_may_end(state: str) -> None:
    job = running(2)
    job.tell("b0", draining=True)
    plan = job.next()
    nowhere = Plan(plan.generation + 1, "why", state, former=plan.former)
    assert not may_end(nowhere, members(job), Name("b0", "1"))


# ---------------------------------------------------------------- plans


def test_a_whole_replica_drains_at_no_cost_to_the_others() -> None:
    job = running(3, pipe=2)
    for worker in ("c0", "c1"):
        job.tell(worker, draining=True)
    plan = job.next()
    assert (job.seats(), plan.broken, plan.reason) == (["a0 a1", "b0 b1"], 0, "c0, c1 drained")
    assert [replica.formed for replica in plan.replicas] == [1, 1]


def test_the_mates_of_a_drained_stage_go_back_to_the_pool_and_are_used_again() -> None:
    job = running(2, pipe=2)
    job.tell("b1", draining=True)
    plan = job.next()
    assert (job.seats(), plan.reason) == (["a0 a1"], "b1 drained; b0 left")
    assert plan.spares == (Name("b0", "1"), Name("b1", "1"))
    job.run()
    job.leave("b0", "b1")
    assert job.ask().plan is None
    job.go("b1")
    job.come("n", 1)
    plan = job.next()
    assert (job.seats(), plan.broken) == (["a0 a1", "b0 n"], 0)


def test_the_drains_of_a_burst_share_a_plan() -> None:
    job = running(3)
    job.tell("a0", 10.0, draining=True)
    assert job.ask(10.1).again == pytest.approx(10.15)
    job.tell("b0", 10.1, draining=True)
    assert job.ask(10.2).again == pytest.approx(10.25)
    assert job.next(10.25).reason == "a0, b0 drained"


def test_a_spare_takes_a_drained_stage_at_once() -> None:
    job = running(2, pipe=2, most=2)
    job.come("s", 1)
    job.tell("b1", draining=True)
    assert (job.next().reason, job.seats()) == ("s joined; b1 drained", ["a0 a1", "b0 s"])


def test_the_only_replica_stays() -> None:
    job = running(1, most=1)
    job.tell("a0", draining=True)
    assert job.ask().plan is None


def test_who_would_take_the_only_copy_along_is_known() -> None:
    job = running(2)
    a, b = (next(m for m in members(job) if m.worker_id == worker) for worker in ("a0", "b0"))
    assert last_holders(job.plan, members(job), [a.name]) == []
    assert last_holders(job.plan, members(job), [a.name, b.name]) == [a.name, b.name]
    job.tell("b0", draining=True)
    assert last_holders(job.plan, members(job), [a.name]) == [a.name], "the other one leaves, too"
    assert last_holders(None, members(job), [a.name]) == []


def test_the_last_copy_is_handed_over_to_one_replica_more_than_wanted() -> None:
    job = running(1, most=2, desired=1)
    job.come("s")
    assert job.ask().plan is None
    job.tell("a0", draining=True)
    job.next()
    assert job.seats() == ["a0", "s"]
    assert job.ask().plan is None
    job.tell("a0", ready=2)
    assert job.ask().plan is None, "s has the state yet to come"
    job.tell("s", ready=2)
    plan = job.next()
    assert (job.seats(), plan.broken) == (["s"], 0)
    job.run()
    assert not may(job, "a0")
    job.leave("a0")
    assert may(job, "a0")


def test_where_somebody_else_sits_nobody_is_added_for_a_drain() -> None:
    job = running(2, most=3, desired=2)
    job.come("s")
    job.tell("a0", draining=True)
    job.next()
    assert job.seats() == ["s", "b0"]


def test_two_drains_in_a_row_and_a_loss_in_the_midst_leave_one_who_holds_the_state() -> None:
    job = running(3)
    job.tell("a0", draining=True)
    job.next()
    job.tell("b0", draining=True)
    assert job.ask().plan is None, "nobody has come to the generation without a0: it might be needed"
    job.go("c0")  # the only one that does not drain dies
    plan = job.next()
    assert job.seats(), "somebody who drains goes on"
    assert set(job.seats()) <= {"a0", "b0"}
    job.run()
    assert not runs(plan, [])


def test_where_the_leader_decides_on_what_only_one_who_drains_holds_another_one_takes_it_over_at_once() -> None:
    """Not in one more generation, published as soon as the decision is."""
    job = running(2, most=2, desired=1)
    job.tell("a0", draining=True)
    job.leave("a0", incomplete=1, pristine=False, committed=Version(1, 7))
    job.leave("b0", pristine=False, committed=None)
    job.next()
    assert (job.seats(), job.plan.kind if job.plan else "") == (["a0", "b0"], "decision")
    assert job.ask().plan is None

"""A leader's steps, driven one by one with times of the test's choice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.leaders_desk import ALL, KEYS, Desk, member

from reknit.rendezvous.codec import decode_spec, encode_member, encode_spec
from reknit.rendezvous.leader.term import Known
from reknit.rendezvous.parts import decode_head
from reknit.rendezvous.records import LOST, Axes, Name, Spec
from reknit.rendezvous.store.protocol import Snapshot


@pytest.fixture
def desk() -> Desk:
    return Desk(Spec(Axes(), 1, 3))


def test_the_same_members_make_no_second_plan(desk: Desk) -> None:
    assert desk.look(1.0, *ALL) == 1
    assert desk.look(2.0, *ALL) == 1
    assert desk.look(1000.0, *ALL) == 1


def test_a_member_that_vanishes_and_returns_between_two_looks_changes_nothing(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    nothing = Snapshot((), 1, 1)
    desk.term.roster.take(nothing, 2.0)
    assert desk.look(2.0, *ALL) == 1


def test_who_was_taken_for_lost_and_is_back_is_asked_once_to_start_afresh(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    assert desk.look(2.0, *(member(number, ready=1) for number in range(3))) == 1
    late = [member(number, ready=1) for number in range(2)]
    assert desk.look(3.0, *late) == 2
    back = member(2, ready=1, left=2)
    assert desk.look(4.0, *late, back) == 2  # not before generation 2 runs
    assert desk.look(5.0, *(member(number, ready=2) for number in range(2)), back) == 3
    assert desk.term.publisher.plan is not None
    assert desk.term.publisher.plan.restart == (back.name,)
    assert {back.name} & desk.term.publisher.plan.names == set()
    assert desk.look(6.0, *(member(number, ready=3) for number in range(2)), back) == 3
    desk.begin()
    assert desk.look(7.0, *(member(number, ready=3) for number in range(2)), back) == 3


def test_who_drains_is_not_asked_to_start_afresh_when_no_plan_knows_it_any_more(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    ran = [member(number, ready=1, keeps=True, draining=True) for number in range(3)]
    stopped = desk.look(2.0, *ran)
    closed = [replace(m, ready=stopped, closed=stopped) for m in ran]
    assert desk.look(3.0, *closed) == desk.look(30.0, *closed) == stopped + 1


def test_a_burst_of_losses_makes_a_plan_for_the_first_at_once_and_one_for_all_others() -> None:
    desk = Desk(Spec(Axes(), 1, 6))
    everybody = [member(number) for number in range(6)]
    assert desk.look(1.0, *everybody) == 1
    ran = [replace(m, ready=1) for m in everybody]
    assert desk.look(2.0, *ran[:5]) == 2
    assert desk.look(2.02, *ran[:4]) == 2
    assert desk.term.again is not None
    assert 2.02 < desk.term.again <= 2.16
    assert desk.look(2.1, *ran[:2]) == 2
    assert desk.look(2.16, *ran[:2]) == 3
    assert desk.plan.names == {m.name for m in ran[:2]}


def test_missing_members_are_waited_for_until_the_store_has_settled(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    desk.tenure.settled = math.inf
    assert desk.look(2.0, ALL[0]) == 1
    assert "w1, w2" in desk.term.waiting_for
    desk.tenure.settled = 5.0
    assert desk.look(3.0, ALL[0]) == 1
    assert desk.look(4.0, ALL[0], ALL[1]) == 1
    assert desk.look(5.0, ALL[0], ALL[1]) == 2
    assert desk.term.publisher.plan is not None
    assert desk.term.publisher.plan.reason == "lost w2"


def test_when_all_are_back_nothing_is_waited_for(desk: Desk) -> None:
    assert desk.look(1.0, *ALL[:2]) == 0  # more may follow
    assert desk.look(1.6, *ALL[:2]) == 1
    desk.tenure.settled = 100.0
    assert desk.look(2.0, *ALL) == 2


def test_nothing_is_published_once_the_lease_may_have_ended(desk: Desk) -> None:
    desk.tenure.deadline = 2.0
    assert desk.look(2.0, *ALL) == 0
    assert not desk.store.list(KEYS.plans).entries
    desk.tenure.deadline = 3.0
    assert desk.look(2.5, *ALL) == 1


def test_without_a_spec_nothing_is_planned_and_one_with_other_axes_is_not_taken(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    desk.store.put(KEYS.spec, encode_spec(Spec(Axes(3), 1, 1)))
    desk.hear(2.0)
    assert desk.term.spec == Spec(Axes(), 1, 3)
    desk.store.put(KEYS.spec, encode_spec(Spec(Axes(), 1, 3, desired=2)))
    assert desk.look(3.0, *ALL) == 2


@pytest.mark.parametrize("found", [b"{", None])
def test_a_new_leader_puts_back_the_last_spec_that_fitted_before_anything_else(desk: Desk, found: bytes | None) -> None:
    desk.store.delete(KEYS.spec)
    if found is not None:
        desk.store.put(KEYS.spec, found)
    assert desk.look(1.0, *ALL) == 0
    assert "no spec" in desk.term.waiting_for
    known = Spec(Axes(), 1, 2)
    desk.begin(Known(known))
    desk.write(*ALL)
    desk.hear(2.0)
    for _ in range(3):
        desk.term.look(2.0)  # the news of what it wrote has not come yet
    assert desk.plan.generation == 1
    entry, head = desk.store.get(KEYS.spec), desk.store.get(KEYS.head)
    assert entry is not None
    assert head is not None
    assert decode_spec(entry.value) == known
    assert entry.mod_revision < head.mod_revision
    assert len(desk.plan.replicas) == 2


def test_a_spec_that_an_operator_writes_meanwhile_is_not_overwritten(desk: Desk) -> None:
    desk.store.delete(KEYS.spec)
    desk.begin(Known(Spec(Axes(), 1, 2)))
    desk.write(*ALL)
    desk.hear(1.0)
    desk.store.put(KEYS.spec, encode_spec(Spec(Axes(), 1, 1)))  # the news of it has not come yet
    desk.term.look(1.0)
    assert desk.look(2.0, *ALL) == 1
    assert len(desk.plan.replicas) == 1


def test_a_new_leader_does_not_lead_with_axes_that_are_not_the_jobs(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    desk.store.put(KEYS.spec, encode_spec(Spec(Axes(3), 1, 1)))
    desk.begin()
    assert desk.look(2.0, *ALL) == 1
    assert "put them back" in desk.term.waiting_for


def test_a_lost_state_is_said_and_left_alone(desk: Desk) -> None:
    spoiled = [replace(m, pristine=False) for m in ALL]
    assert desk.look(1.0, *spoiled) == 1
    left = [replace(m, pristine=False, incomplete=1, left=1) for m in ALL]
    assert desk.look(2.0, *left) == 2
    plan = desk.term.publisher.plan
    assert plan is not None
    assert plan.state == LOST
    assert desk.look(100.0, *left, member(7, coordinate=None, built=False)) == 2
    assert not desk.store.list(KEYS.assignments).entries


def test_assignments_of_workers_that_are_gone_for_long_are_forgotten(desk: Desk) -> None:
    desk.look(1.0, member(1, coordinate=None, built=False))
    desk.go(1.5)
    assert desk.store.get(KEYS.assignment("w1"))
    desk.look(2.0)
    assert desk.store.get(KEYS.assignment("w1"))
    desk.look(50.0)
    desk.look(100.0)
    assert desk.store.get(KEYS.assignment("w1")) is None


def test_hosts_that_start_together_are_told_when_their_workers_are_there_so_that_each_holds_a_replica() -> None:
    desk = Desk(Spec(Axes(2), 1, 3))
    fresh = [replace(member(k), host=f"h{k % 2}", coordinate=None, built=False) for k in range(4)]
    for count in range(1, 5):
        desk.look(1.0 + count / 10, *fresh[:count])
        assert not desk.store.list(KEYS.assignments).entries
    assert desk.term.again == pytest.approx(1.3 + 0.5), "the first host's last worker came at 1.3"
    desk.go(1.85)
    desk.go(1.95)
    given = {name.worker_id: coordinate for name, coordinate in desk.term.assignments.given.items()}
    assert {given["w0"], given["w2"]} == {given["w1"], given["w3"]} == {0, 1}
    built = [replace(m, built=True, coordinate=given[m.worker_id]) for m in fresh]
    desk.look(3.0, *built)
    desk.go(3.5)
    assert {frozenset(n.worker_id for n in r.names) for r in desk.plan.replicas} == {
        frozenset({"w0", "w2"}),
        frozenset({"w1", "w3"}),
    }
    again = replace(fresh[0], incarnation="again")
    desk.look(4.0, again, *(replace(m, ready=1, pristine=False) for m in built[1:]))
    assert Name("w0", "again") in desk.term.assignments.given, "a replacement waits for nobody"


def test_a_stopped_job_begins_again_under_agents_that_came_later_and_says_so(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    assert desk.look(2.0, *(replace(m, ready=1, pristine=False) for m in ALL)) == 1
    desk.begin(Known(earlier=1))
    fresh = [replace(m, incarnation="again", built=False, coordinate=None) for m in ALL]
    assert desk.look(3.0, *fresh) == 1
    assert len(desk.store.list(KEYS.assignments).entries) == 3
    assert desk.look(4.0, *(replace(m, built=True, coordinate=0) for m in fresh)) == 2
    plan = desk.term.publisher.plan
    assert plan is not None
    assert (plan.restore, plan.origin, plan.placed, len(plan.replicas), plan.former) == (True, 2, 2, 3, ())
    assert "starts again from step 0" in plan.reason
    desk.look(5.0, *(replace(m, built=True, coordinate=0, ready=2) for m in fresh[:2]))
    assert desk.term.publisher.plan is not None
    assert "again" not in desk.term.publisher.plan.reason.partition("lost")[0]


def test_a_job_whose_workers_all_crashed_under_a_living_agent_is_lost_and_can_be_begun_again(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    assert desk.look(2.0, *(replace(m, ready=1, pristine=False) for m in ALL)) == 1
    fresh = [replace(m, incarnation="again") for m in ALL]
    generation = desk.look(3.0, *fresh)
    generation = desk.look(4.0, *(replace(m, incomplete=generation, left=generation) for m in fresh))
    plan = desk.term.publisher.plan
    assert plan is not None
    assert plan.state == LOST
    desk.begin(Known(earlier=generation))
    assert desk.look(5.0, *(replace(m, incarnation="third") for m in ALL)) == generation + 1
    assert desk.term.publisher.plan is not None
    assert "starts again from step 0" in desk.term.publisher.plan.reason


def test_records_that_no_agent_can_have_written_do_not_stop_the_job(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    here = [replace(m, ready=1) for m in ALL]
    garbage = [
        (KEYS.members + "nobody", encode_member(replace(member(7), worker_id="nobody", left=2)), None),  # no lease
        (KEYS.members + "a b", encode_member(replace(member(7), worker_id="a b")), desk.lease),
        (KEYS.members + "far", encode_member(replace(member(7), worker_id="far", left=2**62 - 1)), desk.lease),
    ]
    for key, value, lease in garbage:
        desk.store.put(key, value, lease=lease)
    desk.hear(2.0)
    assert {name.worker_id for name in desk.term.roster.names()} == {"w0", "w1", "w2"}
    assert desk.rejected.count == 3
    assert desk.look(3.0, *here[:2]) == 2


def test_the_largest_generation_that_a_record_can_report_leaves_room_for_the_next(desk: Desk) -> None:
    desk.look(1.0, *ALL)
    far = member(7, left=2**48 - 1)
    assert desk.look(2.0, *(replace(m, ready=1) for m in ALL), far) >= 2**48 - 1
    generation = desk.look(3.0, *(replace(m, ready=1) for m in ALL))
    entry = desk.store.get(KEYS.head)
    assert entry is not None
    assert decode_head(entry.value).generation == generation


def test_a_coordinate_that_died_after_its_last_step_is_given_out_again_and_the_loss_is_said() -> None:
    desk = Desk(Spec(Axes(2), 1, 1))
    holders = [replace(member(number), coordinate=number) for number in range(2)]
    desk.look(1.0, *holders)
    ran = [replace(m, ready=1, pristine=False, finished=True) for m in holders]
    assert desk.look(2.0, replace(ran[0], dead=True), ran[1]) == 2  # it was killed as it finished
    fresh = replace(member(0), incarnation="again", coordinate=None, built=False)
    assert desk.look(3.0, ran[1], fresh) == 2
    assert desk.store.get(KEYS.assignment("w0"))
    fresh = replace(fresh, coordinate=0, built=True)
    assert desk.look(4.0, ran[1], fresh) == 3
    assert desk.look(5.0, *(replace(m, left=3, incomplete=3) for m in (ran[1], fresh))) == 4
    assert desk.term.publisher.plan is not None
    assert desk.term.publisher.plan.state == LOST

"""What a leader does when the store has lost everything, or everybody's leases have ended."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.unit.leaders_desk import ALL, KEYS, Desk, member

from reknit.rendezvous.keys import decode_assignment
from reknit.rendezvous.leader.term import Known
from reknit.rendezvous.parts import decode_head, decode_whole, parts_prefix
from reknit.rendezvous.records import FINISHED, WAITING, Axes, Plan, Spec

SPEC = Spec(Axes(), 1, 3)
RAN = tuple(replace(m, ready=1, pristine=False) for m in ALL)
BACK = 5.0 / 3 + 1.0  # seconds within which all who live write their records anew


@pytest.fixture
def desk() -> Desk:
    desk = Desk(SPEC)
    assert desk.look(1.0, *ALL) == 1
    assert desk.look(2.0, *RAN) == 1
    return desk


def stored(desk: Desk) -> Plan:
    """The newest plan as a newcomer finds it in the store."""
    entry = desk.store.get(KEYS.head)
    assert entry is not None
    head = decode_head(entry.value)
    found = desk.store.list(KEYS.prefix + parts_prefix(head.generation, head.writer)).entries
    return decode_whole(head, {entry.key.removeprefix(KEYS.prefix): entry.value for entry in found})


def test_who_led_before_fills_an_emptied_store_with_what_stood_there_and_nobody_moves(desk: Desk) -> None:
    plan = desk.plan
    desk.wipe()
    desk.begin(Known(SPEC), plan=plan)
    assert desk.look(3.0, *RAN) == 1
    assert stored(desk) == plan
    assert desk.store.get(KEYS.spec) is not None
    assert desk.look(3.0 + 2 * BACK, *RAN) == 1


def test_after_a_wipe_who_has_not_come_back_yet_is_no_loss_until_all_who_live_have(desk: Desk) -> None:
    plan = desk.plan
    desk.wipe()
    desk.begin(Known(SPEC), plan=plan)
    assert desk.look(3.0, RAN[0]) == 1
    assert "w1, w2" in desk.term.waiting_for
    assert desk.look(3.0 + BACK - 0.1, *RAN[:2]) == 1
    assert desk.look(3.0 + BACK, *RAN[:2]) == 2
    assert desk.plan.reason.startswith("lost w2")


def test_another_leader_waits_for_all_before_it_places_anybody_anew_and_takes_nobody_for_lost(desk: Desk) -> None:
    desk.wipe()
    desk.begin(Known(SPEC))
    assert desk.look(3.0, RAN[0]) == 0
    assert "come back" in desk.term.waiting_for
    assert desk.look(3.0 + BACK - 0.1, *RAN) == 0
    assert desk.look(3.0 + BACK, *RAN) == 2
    assert desk.plan.names == {m.name for m in RAN}
    assert not desk.plan.restart


def test_a_leader_that_saw_a_head_gives_out_no_number_up_to_it_though_nobody_reports_any(desk: Desk) -> None:
    entry = desk.store.get(KEYS.head)
    assert entry is not None
    desk.wipe()
    desk.begin(Known(SPEC), seen=decode_head(entry.value))
    fresh = tuple(replace(m, incarnation="again") for m in ALL)
    assert desk.look(3.0, *fresh) == 0
    assert desk.look(3.0 + BACK, *fresh) == 2


def test_what_another_has_published_since_prevails_over_what_this_agent_remembers(desk: Desk) -> None:
    plan = desk.plan
    desk.begin()
    assert desk.look(3.0, *RAN[:2]) == 2
    newer = desk.plan
    desk.begin(Known(SPEC), plan=plan)
    assert desk.look(4.0, *(replace(m, ready=2) for m in RAN[:2])) == 2
    assert desk.plan == newer
    entry = desk.store.get(KEYS.head)
    assert entry is not None
    desk.wipe()
    desk.begin(Known(SPEC), seen=decode_head(entry.value), plan=plan)
    assert desk.look(5.0, *RAN[:2]) == 0


def test_parts_that_are_lost_are_written_again_by_who_remembers_them(desk: Desk) -> None:
    plan = desk.plan
    desk.store.delete_prefix(KEYS.prefix + parts_prefix(1, plan.writer))
    desk.begin(plan=plan)
    assert desk.look(3.0, *RAN) == 1
    assert stored(desk) == plan


def test_a_finished_job_stays_finished_in_an_emptied_store(desk: Desk) -> None:
    done = tuple(replace(m, finished=True) for m in RAN)
    assert desk.look(3.0, *done) == 2
    assert desk.plan.state == FINISHED
    plan = desk.plan
    desk.wipe()
    desk.begin(Known(SPEC), plan=plan)
    assert desk.look(4.0, *done) == 2
    assert stored(desk).state == FINISHED


def test_a_fresh_member_whose_assignment_vanished_is_told_again_the_same(desk: Desk) -> None:
    fresh = replace(member(0), incarnation="again", coordinate=None, built=False)
    desk.look(3.0, fresh, *RAN[1:])
    told = desk.store.get(KEYS.assignment("w0"))
    assert told is not None
    desk.store.delete(KEYS.assignment("w0"))
    desk.look(4.0, fresh, *RAN[1:])
    again = desk.store.get(KEYS.assignment("w0"))
    assert again is not None
    assert again.value == told.value
    plan, given = desk.plan, desk.term.assignments.given
    desk.wipe()
    desk.begin(Known(SPEC, given=given), plan=plan)
    desk.look(5.0, fresh, *RAN[1:])
    again = desk.store.get(KEYS.assignment("w0"))
    assert again is not None
    assert again.value == told.value


def test_what_this_agent_gave_when_it_led_before_still_holds() -> None:
    desk = Desk(Spec(Axes(2), 1, 1))
    fresh = member(0, coordinate=None, built=False)
    desk.begin(Known(given={fresh.name: 1}))
    desk.look(3.0, fresh, member(1, coordinate=None, built=False))
    told = [desk.store.get(KEYS.assignment(worker)) for worker in ("w0", "w1")]
    assert [entry and decode_assignment(entry.value, entry.key).coordinate for entry in told] == [1, 0]


def test_an_assignment_is_forgotten_with_its_process_but_not_the_one_of_the_next_process(desk: Desk) -> None:
    first, second = (replace(member(0), incarnation=i, coordinate=None, built=False) for i in ("second", "third"))
    desk.look(3.0, first, *RAN[1:])
    desk.look(4.0, second, *RAN[1:])
    desk.look(50.0, second, *RAN[1:])
    desk.look(100.0, second, *RAN[1:])
    told = desk.store.get(KEYS.assignment("w0"))
    assert told is not None
    assert decode_assignment(told.value, told.key).name == second.name
    assert first.name not in desk.term.assignments.given


def test_an_assignment_that_nobody_waits_for_any_more_is_not_written_again(desk: Desk) -> None:
    fresh = replace(member(0), incarnation="again", coordinate=None, built=False)
    desk.look(3.0, fresh, *RAN[1:])
    desk.store.delete(KEYS.assignment("w0"))
    desk.look(4.0, replace(fresh, coordinate=0, built=True), *RAN[1:])
    assert desk.store.get(KEYS.assignment("w0")) is None


def test_a_worker_that_died_in_an_outage_is_not_waited_for_as_its_record_says_so(desk: Desk) -> None:
    desk.tenure.settled = math.inf  # the store has just come back
    assert desk.look(3.0, *RAN[:2]) == 1
    assert desk.term.waiting_for.startswith("w2 to come back")
    assert desk.look(3.1, *RAN[:2], replace(RAN[2], dead=True)) == 2
    assert desk.plan.reason.startswith("lost w2")
    assert desk.plan.names == {m.name for m in RAN[:2]}


def test_nor_is_one_whose_next_process_is_there_already(desk: Desk) -> None:
    desk.tenure.settled = math.inf
    fresh = replace(RAN[2], incarnation="again", ready=0, built=False, coordinate=None, pristine=True)
    assert desk.look(3.0, *RAN[:2], fresh) == 2
    assert desk.plan.names == {m.name for m in RAN[:2]}


def test_the_dead_get_nothing_and_do_not_count(desk: Desk) -> None:
    dead = replace(member(3), dead=True, built=False, coordinate=None)
    assert desk.look(3.0, *RAN[:2], replace(RAN[2], dead=True), dead) == 2
    assert desk.store.get(KEYS.assignment("w3")) is None
    assert desk.term.roster.names() == {m.name for m in RAN[:2]}
    assert desk.plan.spares == ()


def test_a_job_of_which_only_tombstones_are_left_begins_again(desk: Desk) -> None:
    desk.begin(Known(earlier=1))
    fresh = [replace(m, incarnation="again") for m in ALL[:2]]
    assert desk.look(3.0, *fresh, replace(RAN[2], dead=True)) == 1  # more may follow
    assert desk.look(4.0, *fresh, replace(RAN[2], dead=True)) == 2
    assert "starts again from step 0" in desk.plan.reason


def test_what_a_dead_one_reported_counts_but_it_gets_no_place_in_what_follows(desk: Desk) -> None:
    desk.store.delete_prefix(KEYS.plans)
    desk.store.put(KEYS.head, b"{")
    desk.begin()
    dead = replace(RAN[2], dead=True, ready=7)
    assert desk.look(3.0, *RAN[:2], dead) == 8
    assert desk.plan.state != WAITING
    assert desk.plan.names == {m.name for m in RAN[:2]}

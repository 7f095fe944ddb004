"""What a leader does about members that hang: it asks its judge in time, and lets who was put out rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.leaders_desk import ALL, KEYS, Desk, member

from reknit.rendezvous.leader.cooling import FORGIVEN, LONGEST, Cooling
from reknit.rendezvous.leader.roster import Roster
from reknit.rendezvous.plan import Observed
from reknit.rendezvous.records import BUSY, WAITS, Axes, Member, Name, Plan, Spec, Stall

RAN = tuple(replace(m, ready=1, pristine=False) for m in ALL)
BUSY_FOR = Stall(1, 5, "script", BUSY, 5.0, 30.0)
WAITS_FOR = Stall(1, 5, "reduce", WAITS, 5.0, 30.0)
STUCK = (RAN[0], replace(RAN[1], stall=WAITS_FOR), replace(RAN[2], stall=BUSY_FOR))


class Judge:
    """Puts out whoever is busy for as long as its limit says, and notes when it was asked about whom."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.heard: list[Name] = []

    def __call__(self, observed: Sequence[Observed], plan: Plan, now: float) -> Mapping[Name, str]:
        self.asked.append(now)
        self.heard = [o.member.name for o in observed]
        return {
            o.member.name: f"{o.member.name} is stuck in its {o.member.stall.phase}"
            for o in observed
            if o.member.stall is not None
            and o.member.stall.kind == BUSY
            and o.member.stall.seconds + now - o.stalled >= o.member.stall.limit
        }


@pytest.fixture
def judge() -> Judge:
    return Judge()


@pytest.fixture
def desk(judge: Judge) -> Desk:
    desk = Desk(Spec(Axes(), 1, 3), judge)
    assert desk.look(1.0, *ALL) == 1
    assert desk.look(2.0, *RAN) == 1
    return desk


def looks_again_at(desk: Desk) -> float | None:
    return desk.term.again


def put_out(desk: Desk) -> None:
    """Member w2 hangs and is put out at second 30 after its stall was seen."""
    desk.look(3.0, *STUCK)
    assert desk.look(28.0, *STUCK) == 2


def test_nobody_is_judged_while_nobody_is_stuck(desk: Desk, judge: Judge) -> None:
    assert judge.asked == []
    assert looks_again_at(desk) is None


def test_who_hangs_is_put_out_when_the_time_has_come_though_nobody_says_anything_new(desk: Desk, judge: Judge) -> None:
    assert desk.look(3.0, *STUCK) == 1
    now = 3.0
    while desk.plan.generation == 1:
        again = looks_again_at(desk)
        assert again is not None
        assert now < again <= now + 0.5
        now = again
        desk.term.look(now)
    assert 28.0 <= now <= 28.5
    assert desk.plan.evicted == desk.plan.restart == (RAN[2].name,)
    assert "w2 is stuck in its script" in desk.plan.reason
    assert desk.plan.names == {RAN[0].name, RAN[1].name}


def test_only_who_has_a_place_gives_reason_to_judge_and_the_dead_are_not_judged(desk: Desk, judge: Judge) -> None:
    idle = member(7, coordinate=None, built=False, stall=BUSY_FOR)
    desk.look(3.0, *RAN, idle)
    assert judge.asked == []
    desk.look(4.0, *STUCK, replace(idle, dead=True))
    assert judge.asked
    assert idle.name not in judge.heard


def test_a_judge_that_fails_stops_no_leader(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> Mapping[Name, str]:
        raise ZeroDivisionError

    desk.judge = fail
    desk.begin()
    desk.look(3.0, *STUCK)
    assert desk.look(4.0, *STUCK[:2]) == 2
    assert caplog.text.count("cannot judge") == 1


def test_what_was_said_before_an_outage_puts_nobody_out_before_all_have_had_time_to_say_more(desk: Desk) -> None:
    desk.look(3.0, *STUCK)
    desk.tenure.settled = math.inf  # no word came from the store, and none comes yet
    assert desk.look(63.0, *STUCK) == 1
    again = looks_again_at(desk)
    assert again is not None
    assert again <= 63.5
    desk.tenure.settled = 66.0
    assert desk.look(65.9, *STUCK) == 1
    assert desk.look(66.0, *RAN) == 1, "all has long been well"
    desk.look(67.0, *STUCK)
    assert desk.look(92.0, *STUCK) == 2, "later, words count"


def test_who_was_put_out_gets_nothing_until_it_has_rested_and_the_status_says_so(desk: Desk) -> None:
    put_out(desk)
    ran = [replace(m, ready=2) for m in RAN[:2]]
    fresh = replace(member(2), incarnation="again", coordinate=None, built=False)
    assert desk.look(29.5, *ran, fresh) == 2
    assert desk.store.get(KEYS.assignment("w2")) is None
    assert "w2 was put out once; it rests for 4 more seconds" in desk.term.waiting_for
    again = looks_again_at(desk)
    assert again is not None
    assert again <= 30.5
    desk.go(32.9)
    assert desk.store.get(KEYS.assignment("w2")) is None
    assert "1 more second" in desk.term.waiting_for
    desk.go(33.0)
    assert desk.store.get(KEYS.assignment("w2")) is not None
    assert "rests" not in desk.term.waiting_for
    assert desk.look(34.0, *ran, replace(fresh, coordinate=0, built=True)) == 3
    assert len(desk.plan.replicas) == 3


def test_one_that_has_built_its_model_gets_no_place_before_either(desk: Desk) -> None:
    put_out(desk)
    built = replace(member(2), incarnation="again")
    ran = [replace(m, ready=2) for m in RAN[:2]]
    assert desk.look(32.9, *ran, built) == 2
    again = looks_again_at(desk)
    assert again is not None
    assert again <= 33.9
    assert desk.look(33.0, *ran, built) == 3


def test_somebody_else_takes_its_place_meanwhile(desk: Desk) -> None:
    put_out(desk)
    ran = [replace(m, ready=2) for m in RAN[:2]]
    resting = replace(member(2), incarnation="again")
    other = member(8, coordinate=None, built=False)
    desk.look(29.0, *ran, resting, other)
    assert desk.store.get(KEYS.assignment("w8")) is not None


def test_a_new_leader_begins_the_rest_anew_with_the_count_of_the_plan(desk: Desk) -> None:
    put_out(desk)
    desk.begin()
    ran = [replace(m, ready=2) for m in RAN[:2]]
    fresh = replace(member(2), incarnation="again", coordinate=None, built=False)
    desk.look(31.0, *ran, fresh)
    assert "it rests for 5 more seconds" in desk.term.waiting_for
    desk.go(36.0)
    assert desk.store.get(KEYS.assignment("w2")) is not None


def test_offences_are_forgotten_after_a_long_time_in_a_place(desk: Desk) -> None:
    put_out(desk)
    ran = [replace(m, ready=2) for m in RAN[:2]]
    assert desk.look(40.0, *ran, replace(member(2), incarnation="again")) == 3
    sat = [replace(m, ready=3) for m in (*RAN[:2], replace(member(2), incarnation="again"))]
    assert desk.look(40.0 + FORGIVEN - 1, *sat[1:]) == 4
    assert dict(desk.plan.offences) == {"w2": 1}
    sat = [replace(m, ready=4) for m in sat]
    assert desk.look(40.0 + FORGIVEN, sat[1], sat[2]) == 4
    assert desk.look(41.0 + FORGIVEN, sat[2]) == 5
    assert dict(desk.plan.offences) == {}


def test_one_that_was_put_out_and_did_not_hear_of_it_is_asked_by_every_plan_until_it_is_gone(desk: Desk) -> None:
    put_out(desk)
    ran = [replace(m, ready=2) for m in RAN[:2]]
    assert desk.look(29.0, *ran, RAN[2]) == 2
    assert desk.look(30.0, ran[0], RAN[2]) == 3
    assert desk.plan.restart == (RAN[2].name,)
    desk.begin()
    ran = [replace(RAN[0], ready=3)]
    assert desk.look(31.0, *ran, RAN[2]) == 3
    for now in (60.0, 61.0):
        desk.look(now, *ran, replace(RAN[2], dead=True), member(5))
    newest = desk.plan
    assert (newest.generation, newest.restart) == (4, ())


def test_of_several_that_come_back_one_after_the_other_the_newest_plan_asks_all(desk: Desk) -> None:
    """An agent whose watch was interrupted sees only the newest plan."""
    assert desk.look(3.0, RAN[0]) == 2
    ran = replace(RAN[0], ready=2)
    assert desk.look(4.0, ran, RAN[1]) == 3
    ran = replace(RAN[0], ready=3)
    assert desk.look(5.0, ran, RAN[1], RAN[2]) == 4
    assert desk.plan.restart == (RAN[1].name, RAN[2].name)
    assert desk.look(60.0, replace(RAN[0], ready=4), RAN[1], RAN[2]) == 4


def test_the_first_offence_after_all_were_forgiven_is_paid_for_too() -> None:
    cooling = Cooling(5.0)
    cooling.see({"w": 1}, {"w"}, 0.0)
    cooling.see({"w": 1}, {"w"}, FORGIVEN)  # nothing has been published since, so the plan still tells of it
    assert cooling.forgiven(FORGIVEN) == {"w"}
    cooling.see({"w": 1}, (), FORGIVEN + 1)  # counted from nothing
    assert cooling.resting(FORGIVEN + 1) == {"w": FORGIVEN + 6}
    cooling.see({"w": 1}, (), FORGIVEN + 2)
    assert cooling.resting(FORGIVEN + 2) == {"w": FORGIVEN + 6}


def test_the_offences_of_a_worker_that_never_comes_back_are_forgotten_in_the_end() -> None:
    cooling = Cooling(5.0)
    cooling.see({"w": 9}, (), 0.0)
    assert cooling.forgiven(2 * FORGIVEN - 1) == set()
    assert cooling.forgiven(2 * FORGIVEN) == {"w"}
    cooling.see({"w": 9}, (), 2 * FORGIVEN)
    assert cooling.resting(2 * FORGIVEN) == {}
    cooling.see({"w": 9}, {"w"}, 2 * FORGIVEN + 1)  # it is back, and has a place
    assert cooling.forgiven(2 * FORGIVEN + 2) == set()


def test_rests_double_up_to_a_limit_and_a_raised_count_begins_a_new_one() -> None:
    cooling = Cooling(5.0)
    now = 100.0
    for count in range(1, 9):
        cooling.see({"w": count}, (), now)
        length = min(LONGEST, 5.0 * 2 ** (count - 1))
        assert cooling.resting(now) == {"w": now + length}
        assert cooling.resting(now + length) == {}
        cooling.see({"w": count}, (), now + length)
        assert cooling.resting(now + length) == {}
        now += 1000.0
    assert "8 times" in cooling.sentence("w", now + 1, now)
    cooling.see({"w": 2**40}, (), now)
    assert cooling.resting(now) == {"w": now + LONGEST}
    cooling.see({}, (), now)
    assert cooling.resting(now) == {}


def test_only_an_unbroken_time_in_a_place_is_forgiven() -> None:
    cooling = Cooling(5.0)
    cooling.see({"w": 1}, {"w"}, 0.0)
    cooling.see({"w": 1}, (), FORGIVEN - 1)
    cooling.see({"w": 1}, {"w"}, FORGIVEN)
    assert cooling.forgiven(FORGIVEN) == set()
    cooling.see({"w": 1}, {"w"}, 2 * FORGIVEN)
    assert cooling.forgiven(2 * FORGIVEN) == {"w"}
    cooling.see({}, {"w"}, 2 * FORGIVEN)  # a plan has dropped it
    cooling.see({"w": 1}, (), 2 * FORGIVEN + 1)
    assert "w" in cooling.resting(2 * FORGIVEN + 1)


def stalled(desk: Desk, roster: Roster, now: float, found: Member) -> float:
    desk.write(found)
    roster.take(desk.store.list(KEYS.members), now)
    return roster.fitting(1)[0].stalled


def test_the_roster_knows_since_when_a_stall_stands(desk: Desk) -> None:
    roster = Roster(desk.rejected)
    assert stalled(desk, roster, 1.0, RAN[0]) == 1.0
    assert stalled(desk, roster, 2.0, replace(RAN[0], stall=BUSY_FOR)) == 2.0
    assert stalled(desk, roster, 3.0, replace(RAN[0], stall=BUSY_FOR, left=1)) == 2.0
    assert stalled(desk, roster, 4.0, replace(RAN[0], stall=replace(BUSY_FOR, seconds=9.0))) == 4.0
    assert stalled(desk, roster, 5.0, RAN[0]) == 5.0
    assert roster.fitting(1)[0].changed == 4.0  # `left` was taken back
    assert not math.isinf(roster.fitting(1)[0].arrived)

"""Which run a plan belongs to: a stopped job may be started again, a living one never goes back by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reknit.rendezvous.earlier import continued, earlier_generation
from reknit.rendezvous.parts import head_of
from reknit.rendezvous.records import FINISHED, LOST, RUNNING, WAITING, Former, Member, Name, Place, Plan, Replica


def member(worker: str, **fields: Any) -> Member:
    return Member(worker, "1", "agent", "host", "127.0.0.1:5000", **fields)


OLD, NEW = member("old", ready=7, pristine=False), member("new")
REPLICA = Replica(0, 5, (Place(OLD.name, "host", OLD.address, 5),))
STANDING = Plan(7, "it runs", RUNNING, (REPLICA,), placed=7, origin=1, broken=3)
EMPTY = Plan(7, "lost everybody", WAITING, placed=6, origin=1)
OVER = Plan(7, "that was it", FINISHED, spares=(OLD.name, Name("late", "1")))


@pytest.mark.parametrize("plan", [STANDING, EMPTY])
def test_an_agent_that_finds_nobody_who_ever_had_a_place_has_found_an_earlier_run(plan: Plan) -> None:
    head = head_of(plan, "")
    assert earlier_generation(head, []) == 7
    assert earlier_generation(head, [NEW]) == 7  # of another host, which is being started again as well
    assert earlier_generation(head, [NEW, OLD]) == 0
    assert earlier_generation(head, [replace(NEW, left=6)]) == 0
    assert earlier_generation(None, [NEW]) == 0


@pytest.mark.parametrize("state", [FINISHED, LOST])
def test_a_run_that_has_ended_is_an_earlier_one_for_whoever_comes_afterwards(state: str) -> None:
    assert earlier_generation(head_of(replace(OVER, state=state), ""), [OLD]) == 7


@pytest.mark.parametrize("plan", [STANDING, EMPTY])
def test_a_stopped_run_begins_again_and_says_so(plan: Plan) -> None:
    blank = continued(plan, [NEW], earlier=7)
    assert (blank.generation, blank.placed, blank.replicas, blank.former, blank.origin) == (7, 0, (), (), 0)
    assert "starts again from step 0" in blank.reason


@pytest.mark.parametrize("plan", [STANDING, EMPTY])
def test_a_run_whose_agents_live_does_not_begin_again_by_itself(plan: Plan) -> None:
    assert continued(plan, [NEW], earlier=0) is plan  # all workers crashed; the agent was there before
    assert continued(plan, [NEW], earlier=6) is plan  # something was published since this agent came
    assert continued(plan, [NEW, OLD], earlier=7) is plan  # somebody who had a place came back


@pytest.mark.parametrize("state", [FINISHED, LOST])
def test_a_run_that_has_ended_begins_again_once_its_members_are_gone(state: str) -> None:
    plan = replace(OVER, state=state)
    assert continued(plan, [NEW, OLD], earlier=0) is plan
    assert continued(plan, [NEW, member("late")], earlier=7) is plan
    assert "starts again from step 0" in continued(plan, [NEW], earlier=0).reason


def test_a_former_member_of_a_lost_run_is_one_of_its_members() -> None:
    plan = Plan(7, "lost", LOST, former=(Former(OLD.name, 0, 6, 1),), placed=6)
    assert continued(plan, [OLD], earlier=7) is plan


def test_before_the_first_place_there_is_nothing_to_begin_again() -> None:
    plan = Plan(0, "nothing yet", WAITING)
    assert continued(plan, [NEW], earlier=0) is plan


@pytest.mark.parametrize("plan", [STANDING, EMPTY])
def test_a_record_of_the_dead_is_nobody(plan: Plan) -> None:
    dead = replace(OLD, dead=True)
    assert earlier_generation(head_of(plan, ""), [NEW, dead]) == 7
    assert "starts again from step 0" in continued(plan, [NEW, dead], earlier=7).reason
    over = replace(OVER, state=LOST)
    assert "starts again from step 0" in continued(over, [NEW, dead], earlier=0).reason

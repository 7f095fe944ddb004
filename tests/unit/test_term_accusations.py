"""What a leader does about an agent that does not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.leaders_desk import KEYS, Desk, member

from reknit.rendezvous.accusation import Accusation, AgentRecord, encode_accusation, encode_agent
from reknit.rendezvous.errors import LeaseLost
from reknit.rendezvous.records import Axes, Spec

RAN = tuple(
    member(number, agent=agent, ready=1, pristine=False) for number, agent in enumerate(["one", "two", "two", "three"])
)
REASON = "w0 saw its connections close"


@pytest.fixture
def desk() -> Desk:
    desk = Desk(Spec(Axes(), 1, 4))
    for agent in ("one", "two", "three"):
        value = encode_agent(AgentRecord(agent, "host", 7))
        desk.store.put(KEYS.agent(agent), value, lease=desk.lease_of(agent))
    assert desk.look(1.0, *(replace(m, ready=0) for m in RAN)) == 1
    assert desk.look(2.0, *RAN) == 1
    return desk


def accuse(desk: Desk, agent: str, *, unanswered: bool = True) -> None:
    """As the session of agent "one" does it."""
    accusation = Accusation(agent, "one", 1, REASON, unanswered)
    desk.store.put(KEYS.accusation(agent), encode_accusation(accusation), lease=desk.lease_of("one"))


def lives(desk: Desk, agent: str) -> bool:
    try:
        desk.store.keep_alive(desk.lease_of(agent))
    except LeaseLost:
        return False
    return True


def stands(desk: Desk, agent: str) -> bool:
    return desk.store.get(KEYS.accusation(agent)) is not None


def test_an_agent_that_does_not_answer_loses_its_lease_and_the_next_plan_says_why(desk: Desk) -> None:
    accuse(desk, "two")
    desk.go(3.0)
    assert not lives(desk, "two")
    assert desk.plan.generation == 2
    assert desk.plan.names == {RAN[0].name, RAN[3].name}
    assert desk.plan.reason.startswith(f"lost w1, w2: agent two does not answer ({REASON})")
    assert desk.plan.broken == 1
    assert not stands(desk, "two")
    assert lives(desk, "one")
    assert lives(desk, "three")
    desk.go(4.0)
    assert desk.plan.generation == 2


def test_one_that_still_has_time_to_answer_is_left_alone(desk: Desk) -> None:
    accuse(desk, "two", unanswered=False)
    desk.go(3.0)
    assert lives(desk, "two")
    assert stands(desk, "two")


@pytest.mark.parametrize("key", [KEYS.member("w2"), KEYS.agent("two")])
def test_a_record_that_it_wrote_since_is_an_answer(desk: Desk, key: str) -> None:
    accuse(desk, "two")
    entry = desk.store.get(key)
    assert entry is not None
    desk.store.put(key, entry.value, lease=desk.lease_of("two"))
    desk.go(3.0)
    assert lives(desk, "two")
    assert not stands(desk, "two")
    assert desk.plan.generation == 1


@pytest.mark.parametrize("key", [KEYS.member("w2"), KEYS.agent("two")])
def test_a_record_written_before_it_was_marked_as_unanswered_is_one_too(desk: Desk, key: str) -> None:
    accuse(desk, "two", unanswered=False)
    entry = desk.store.get(key)
    assert entry is not None
    desk.store.put(key, entry.value, lease=desk.lease_of("two"))
    accuse(desk, "two")
    desk.go(3.0)
    assert lives(desk, "two")


def test_so_is_one_of_which_the_news_has_not_come_yet(desk: Desk) -> None:
    accuse(desk, "two")
    desk.hear(3.0)
    entry = desk.store.get(KEYS.member("w2"))
    assert entry is not None
    desk.store.put(entry.key, entry.value, lease=desk.lease_of("two"))
    desk.term.look(3.0)
    assert lives(desk, "two")
    assert desk.term.again is not None
    assert desk.term.again <= 3.1
    desk.go(3.1)
    assert lives(desk, "two")
    assert not stands(desk, "two")


def test_nobody_loses_a_lease_while_the_leaders_own_may_have_ended(desk: Desk) -> None:
    accuse(desk, "two")
    desk.tenure.deadline = 3.0
    desk.go(3.0)
    assert lives(desk, "two")


def test_nor_by_one_that_was_deposed_and_does_not_know_it_yet(desk: Desk) -> None:
    accuse(desk, "two")
    desk.store.delete(KEYS.leader)
    desk.store.put(KEYS.leader, b"another", lease=desk.lease_of("three"))
    desk.go(3.0)
    assert lives(desk, "two")
    assert stands(desk, "two")


def test_a_new_leader_that_finds_an_accusation_standing_acts_the_same(desk: Desk) -> None:
    accuse(desk, "two")
    desk.begin()
    desk.go(3.0)
    assert not lives(desk, "two")
    assert REASON in desk.plan.reason
    assert not stands(desk, "two")


def test_the_reason_is_used_even_if_somebody_else_has_ended_the_lease(desk: Desk) -> None:
    desk.store.revoke(desk.lease_of("two"))  # of a dead leader: by its accuser
    accuse(desk, "two")
    desk.begin()
    desk.go(3.0)
    assert desk.plan.reason.startswith(f"lost w1, w2: agent two does not answer ({REASON})")
    assert not stands(desk, "two")


def test_after_an_outage_nobody_waits_for_those_whose_agent_does_not_answer(desk: Desk) -> None:
    accuse(desk, "two")
    desk.tenure.settled = 100.0
    desk.go(3.0)
    assert desk.plan.reason.startswith(f"lost w1, w2: agent two does not answer ({REASON})")


def test_the_reason_is_used_for_one_that_has_no_place_any_more_too(desk: Desk) -> None:
    draining = [RAN[0], replace(RAN[1], draining=True), replace(RAN[2], draining=True), RAN[3]]
    assert desk.look(3.0, *draining) == 1  # others of that host may be told to leave just after
    assert desk.look(3.2, *draining) == 2
    assert desk.plan.names == {RAN[0].name, RAN[3].name}
    accuse(desk, "two")
    desk.go(4.0)
    assert not lives(desk, "two")
    assert desk.plan.reason.startswith(f"lost w1, w2: agent two does not answer ({REASON})")
    assert not stands(desk, "two")


def test_the_accusation_of_an_agent_of_which_nothing_is_left_goes(desk: Desk) -> None:
    accuse(desk, "nobody")
    desk.go(3.0)
    assert not stands(desk, "nobody")
    assert desk.plan.generation == 1


def test_an_agent_without_members_loses_its_lease_too(desk: Desk) -> None:
    desk.store.put(KEYS.agent("idle"), encode_agent(AgentRecord("idle", "host", 8)), lease=desk.lease_of("idle"))
    accuse(desk, "idle")
    desk.go(3.0)
    assert not lives(desk, "idle")
    assert not stands(desk, "idle")


def test_the_leader_itself_lives_whatever_is_said(desk: Desk) -> None:
    assert desk.look(3.0, *RAN, member(8, agent="me")) == 1  # more may follow
    accuse(desk, "me")
    desk.go(4.0)
    assert lives(desk, "me")
    assert not stands(desk, "me")


def test_a_loss_of_another_kind_is_not_given_that_reason(desk: Desk) -> None:
    accuse(desk, "two")
    desk.go(3.0)
    desk.look(4.0, replace(RAN[0], ready=2))
    assert desk.plan.reason.startswith("lost w3")
    assert REASON not in desk.plan.reason


def test_one_that_lived_after_all_is_asked_to_start_afresh_and_its_later_loss_has_its_own_reason(desk: Desk) -> None:
    accuse(desk, "two")
    desk.go(3.0)
    del desk.leases["two"]  # it gets a new one
    ran = [replace(RAN[0], ready=2), replace(RAN[3], ready=2)]
    assert desk.look(4.0, *ran, RAN[1], RAN[2]) == 3
    assert desk.plan.restart == (RAN[1].name, RAN[2].name)
    again = replace(RAN[1], incarnation="again", ready=0, pristine=True)
    ran = [replace(m, ready=3) for m in ran]
    generation = desk.look(5.0, *ran, again)
    generation = desk.look(6.0, *ran, again)
    assert again.name in desk.plan.names
    ran = [replace(m, ready=generation) for m in ran]
    desk.look(7.0, *ran)
    assert desk.plan.reason.startswith("lost w1")
    assert REASON not in desk.plan.reason


def test_garbage_in_the_place_of_an_accusation_hurts_nobody(desk: Desk) -> None:
    desk.store.put(KEYS.accusation("two"), b"[]")
    desk.go(3.0)
    assert lives(desk, "two")
    assert desk.rejected.count == 1

"""Whom an agent accuses: nobody while plans come, then those of the lost and the leader's."""

from __future__ import annotations

from typing import Any

from reknit.rendezvous.parts import Head, Peer, View
from reknit.rendezvous.records import RUNNING, Member, Name, Place, Replica
from reknit.runtime.suspicion import AT_ONCE, Suspect, Waiting, agents_of, suspects, waiting

A, B, C = Name("a-0", "1"), Name("b-0", "1"), Name("c-0", "1")
AGENTS = {A: "a", B: "b", C: "c"}


def doubted(*who: Waiting, now: float, leader: str | None = "b", **last: float) -> tuple[list[str], float | None]:
    found, again = suspects(who, AGENTS, "a", leader, last, 0.1, now)
    return [suspect.agent for suspect in found], again


def lone(**evidence: Any) -> Waiting:
    return Waiting("a-0", 7, 100.0, **evidence)


def test_a_plan_that_comes_in_time_keeps_everybody_from_being_accused() -> None:
    assert doubted(now=100.0) == ([], None)
    assert doubted(lone(gone=(C,)), now=100.05) == ([], 100.1)


def test_then_the_agents_of_the_lost_are_accused_and_the_leaders_and_never_ones_own() -> None:
    found, again = suspects([lone(gone=(C, A))], AGENTS, "a", "b", {}, 0.1, 100.1)
    assert found == [
        Suspect("c", 7, "a-0 saw its connection to c-0 end"),
        Suspect("b", 7, "a-0 left generation 7, and the leader publishes no plan"),
    ]
    assert again == 101.1
    assert doubted(lone(absent=(B,)), now=100.1, leader="a")[0] == ["b"]
    assert doubted(lone(), now=100.1, leader=None)[0] == []


def test_each_is_accused_once_and_again_every_second() -> None:
    two = Waiting("a-1", 7, 100.02, gone=(C,))
    assert doubted(lone(gone=(C,)), two, now=100.2)[0] == ["c", "b"]
    assert doubted(lone(gone=(C,)), two, now=100.5, b=100.1, c=100.2) == ([], 101.1)
    assert doubted(lone(gone=(C,)), two, now=101.1, b=100.1, c=100.2) == (["b"], 101.2)


def test_who_waits_for_long_asks_less_often() -> None:
    assert doubted(lone(), now=120.0, b=116.0) == ([], 121.0)
    assert doubted(lone(), now=121.0, b=115.0) == (["b"], 126.25)
    assert doubted(lone(), now=700.0, b=690.0) == (["b"], 710.0)


def test_where_all_leave_each_asks_about_few_and_together_they_ask_about_all() -> None:
    names = [Name(f"w{i}", "1") for i in range(40)]
    agents = {name: f"agent-{name.worker_id}" for name in names}
    asked = set()
    for own in agents.values():
        found, _ = suspects([lone(gone=tuple(names))], agents, own, "agent-w0", {}, 0.1, 101.0)
        mine = {suspect.agent for suspect in found}
        assert own not in mine
        assert len(mine - {"agent-w0"}) == AT_ONCE
        assert own == "agent-w0" or "agent-w0" in mine
        asked |= mine
        last = dict.fromkeys(mine, 101.0)
        assert suspects([lone(gone=tuple(names))], agents, own, "agent-w0", last, 0.1, 101.5)[0] == []
    assert asked == set(agents.values())


def test_who_has_no_known_agent_is_not_accused() -> None:
    assert doubted(lone(gone=(Name("x", "1"),)), now=101.0, leader=None)[0] == []


def view(generation: int, placed: bool = True) -> View:
    head = Head(generation, "why", RUNNING, 0, None, False, 0, 0, 1, 1, "")
    places = [Place(name, "h", "h:1", 1, agent) for name, agent in AGENTS.items()]
    if not placed:
        return View(head)
    return View(head, Replica(0, 1, (places[0], places[1])), (Peer(0, places[0]), Peer(1, places[2])))


def test_a_worker_waits_once_it_has_left_the_newest_generation_that_is_known() -> None:
    member = Member("a-0", "1", "a", "h", "h:1", left=7, gone=(C,), absent=(B,))
    assert waiting(member, view(7), 7, 100.0) == Waiting("a-0", 7, 100.0, (C,), (B,))
    assert waiting(member, view(7), 8, 100.0) is None
    assert waiting(member, view(8), 8, 100.0) is None
    assert waiting(member, view(7, placed=False), 7, 100.0) is None
    assert waiting(member, None, 7, 100.0) is None


def test_the_views_tell_whose_workers_the_peers_are() -> None:
    assert agents_of([None, view(7), view(8, placed=False)]) == AGENTS

"""What an agent does as time passes, and how it takes deaths, pulses and accusations; time is the tests' own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.desk import Desk, head, peer

from reknit.health.verdict import HUNG, Verdict
from reknit.rendezvous.accusation import Accusation
from reknit.rendezvous.parts import Peer as DataPeer
from reknit.rendezvous.parts import View
from reknit.rendezvous.records import FINISHED, SILENT, WAITS, Member, Name, Place, Replica, Version
from reknit.rendezvous.session.events import Accused, Assigned, HeadSeen, ViewFetched
from reknit.rendezvous.store.protocol import Entry
from reknit.runtime.fleet import Worker
from reknit.runtime.ipc.server import Peer, PeerEvent
from reknit.runtime.judging import Judged
from reknit.runtime.keeper import Keeper

OWN, OTHER = Name("w0", "a"), Name("v0", "z")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.log.close()


@pytest.fixture
def accused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(desk.agent._session, "accuse", lambda agent, generation, why: found.append((agent, generation)))
    desk.agent._session._candidacy.see(Entry("leader", b"lead", 1, 1, 1))
    return found


def place(desk: Desk, generation: int = 7) -> Peer:
    """One worker here, with a place beside one of the agent `far`."""
    who = desk.attach(peer("w0", 1))
    desk.agent.take(Assigned("w0", "a", 0))
    see(desk, generation)
    return who


def see(desk: Desk, generation: int) -> None:
    newest = head(generation, replicas=2)
    places = [Place(OWN, "h", "h:1", 1, "agent"), Place(OTHER, "h2", "h2:1", 1, "far")]
    desk.agent.take(HeadSeen(newest))
    peers = tuple(DataPeer(slot, each) for slot, each in enumerate(places))
    desk.agent.take(ViewFetched(OWN, View(newest, Replica(0, 1, (places[0],)), peers)))


def leave(desk: Desk, who: Peer, generation: int = 7) -> float:
    """It leaves its generation, as the connection to the other one broke; when its agent heard of it."""
    versions: dict[str, Any] = {"committed": [6, 40], "prepared": None, "pristine": False}
    evidence = {"gone": [list(OTHER)], "absent": []}
    desk.say(who, type="left", generation=generation, incomplete=0, torn=0, **versions, **evidence)
    return desk.agent.station.workers["w0"].left_at


def pulse(kind: str, seconds: float, phase: str = "reduce") -> dict[str, Any]:
    where = {"generation": 7, "step": 41, "phase": phase}
    return {"type": "pulse", **where, "kind": kind, "seconds": seconds, "limit": 30.0}


# ---------------------------------------------------------------- deaths


def test_a_death_leaves_a_tombstone_and_an_end_in_order_leaves_nothing(desk: Desk) -> None:
    first, second = desk.attach(peer("w0", 1)), desk.attach(peer("w1", 2))
    desk.agent.take(PeerEvent("closed", first))
    assert (desk.record("w0").dead, desk.record("w1").dead) == (True, False)
    desk.attach(peer("w0", 3, "b"))
    assert not desk.record("w0").dead
    desk.agent.take(HeadSeen(head(4, state=FINISHED)))
    desk.agent.take(PeerEvent("closed", second))
    assert list(desk.agent._session._members) == ["w0"]


def test_who_has_finished_and_dies_before_the_others_have_is_missed(desk: Desk) -> None:
    who = desk.attach(peer("w0", 1))
    desk.say(who, type="finished", step=9)
    desk.agent.take(PeerEvent("closed", who))
    assert desk.record("w0").dead


def test_who_says_that_it_takes_no_part_any_more_counts_as_dead(desk: Desk) -> None:
    who = place(desk)
    desk.say(who, type="gone")
    assert desk.record("w0").dead
    desk.tell(who, pulse(WAITS, 20.0))
    leave(desk, who)
    assert desk.record("w0").dead


def test_who_takes_no_part_any_more_is_dead_to_an_agent_that_comes_back_too(desk: Desk) -> None:
    buried = Member("w0", "a", "agent", "host", "127.0.0.1:5000", coordinate=0, dead=True)
    desk.agent._session._members["w0"] = buried
    desk.agent.attending.expect([buried], time.monotonic())
    who = desk.attach(peer("w0", 1, coordinate=0, over=True))
    assert desk.record("w0").dead
    desk.tell(who, pulse(WAITS, 20.0))
    leave(desk, who)
    desk.agent.take(Accused(Accusation("agent", "far", 7, "why")))
    assert desk.record("w0").dead
    assert desk.agent.station.workers["w0"].ends_by is not None
    desk.agent.take(PeerEvent("closed", who))
    desk.attach(peer("w0", 2, "b"))
    assert not desk.record("w0").dead


class Killer:
    """A keeper, as far as it is needed."""

    def __init__(self) -> None:
        self.killed: list[tuple[str, float]] = []

    def kill(self, worker: Worker, grace: float) -> None:
        self.killed.append((worker.worker_id, grace))


def test_who_has_given_up_and_hangs_in_its_end_is_ended(desk: Desk) -> None:
    who, killer = place(desk), Killer()
    desk.agent.station.keeper = cast(Keeper, killer)
    attending, ladder = desk.agent.attending, desk.agent.station.config.ladder
    desk.say(who, type="gone")
    said = desk.agent.station.workers["w0"].watch.heard
    assert attending.next_timer() == said + 10 * ladder.hang
    attending.run_timers(said + 10 * ladder.hang - 0.1)
    assert killer.killed == []
    attending.run_timers(said + 10 * ladder.hang)
    assert killer.killed == [("w0", ladder.kill_delay)]
    assert attending.next_timer() is None


def test_the_kernels_word_on_the_process_is_in_the_record(desk: Desk) -> None:
    desk.attach(peer("w0", 1))
    assert desk.record("w0").pid == 4001


# ---------------------------------------------------------------- an earlier life


def adopted(worker: str) -> Member:
    known = {"coordinate": 0, "built": True, "ready": 6, "committed": Version(6, 40), "pristine": False, "answered": 6}
    return Member(worker, "a", "agent", "host", "127.0.0.1:5000", **known)  # type: ignore[arg-type]


def test_workers_of_an_earlier_life_come_back_as_they_were_or_are_dead(desk: Desk) -> None:
    members = [adopted("w0"), adopted("w1"), Member("w2", "a", "agent", "host", "h:1", dead=True)]
    desk.agent._session._members.update({member.worker_id: member for member in members})
    now = time.monotonic()
    desk.agent.attending.expect(members, now)
    assert desk.agent.attending.next_timer() == now + 2.0
    desk.agent.take(HeadSeen(head(7)))
    desk.attach(peer("w0", 1, ready=6, coordinate=0))
    record = desk.record("w0")
    assert (record.coordinate, record.ready, record.committed, record.answered) == (0, 6, (6, 40), 6)
    desk.agent.attending.run_timers(now + 1.9)
    assert not desk.record("w1").dead
    desk.agent.attending.run_timers(now + 2.0)
    assert [desk.record(worker).dead for worker in ("w0", "w1", "w2")] == [False, True, True]
    assert [event["worker"] for event in desk.events() if event["event"] == "worker_died"] == ["w1"]
    assert desk.agent.attending.next_timer() is None


def test_a_sidecar_that_is_back_does_not_end_before_its_workers_have_come(desk: Desk) -> None:
    desk.agent.attending.expect([adopted("w0")], time.monotonic())
    desk.agent.take(HeadSeen(head(7, state=FINISHED)))
    assert not desk.agent._has_ended()
    who = desk.attach(peer("w0", 1))
    desk.agent.take(PeerEvent("closed", who))
    assert desk.agent._has_ended()


# ---------------------------------------------------------------- stalls


def test_a_stall_is_in_the_record_until_the_worker_moves_on(desk: Desk) -> None:
    who = place(desk)
    desk.tell(who, pulse(WAITS, 2.0))
    assert desk.record("w0").stall is None
    desk.tell(who, pulse(WAITS, 5.0))
    stall = desk.record("w0").stall
    assert stall is not None
    assert (stall.kind, stall.phase, stall.seconds) == (WAITS, "reduce", 5.0)
    desk.say(who, type="event", event="committed", t=2.0, generation=7, step=41)
    assert desk.record("w0").stall is None
    desk.tell(who, {"type": "pulse", "kind": "nonsense"})
    assert [dropped for dropped, _ in desk.dropped] == [who]


def test_who_has_a_place_and_says_nothing_is_silent(desk: Desk) -> None:
    who = place(desk)
    desk.attach(peer("w1", 2))  # has no place
    vigil, heard = desk.agent.vigil, desk.agent.station.workers["w0"].watch.heard
    assert vigil.next_timer() == heard + 5.0
    vigil.run_timers(heard + 4.9)
    assert desk.record("w0").stall is None
    vigil.run_timers(heard + 5.0)
    stall = desk.record("w0").stall
    assert stall is not None
    assert (stall.kind, stall.seconds, stall.generation) == (SILENT, 5.0, 7)
    assert desk.record("w1").stall is None
    assert vigil.next_timer() is None
    desk.tell(who, pulse("busy", 1.0))
    assert desk.record("w0").stall is None


def test_who_has_announced_a_long_phase_is_not_missed_in_it(desk: Desk) -> None:
    who = place(desk)
    desk.tell(who, pulse("long", 1.0))
    vigil, heard = desk.agent.vigil, desk.agent.station.workers["w0"].watch.heard
    assert vigil.next_timer() is None
    vigil.run_timers(heard + 100.0)
    assert desk.record("w0").stall is None
    desk.tell(who, pulse("long", 0.0))  # it is over
    assert vigil.next_timer() == desk.agent.station.workers["w0"].watch.heard + 5.0


def test_an_agent_that_was_stopped_itself_knows_of_no_silence(desk: Desk) -> None:
    place(desk)
    vigil, heard = desk.agent.vigil, desk.agent.station.workers["w0"].watch.heard
    vigil.turn(heard)
    vigil.turn(heard + 30.0)
    vigil.run_timers(heard + 30.0)
    assert desk.record("w0").stall is None
    for second in range(1, 6):
        vigil.turn(heard + 30.0 + second)
    vigil.run_timers(heard + 35.0)
    assert desk.record("w0").stall is not None


# ---------------------------------------------------------------- before a place


def building(seconds: float, **more: Any) -> dict[str, Any]:
    return {**pulse("busy", seconds, "building its model"), "limit": 300.0, **more}


def test_who_has_no_place_and_does_not_come_is_named_once(desk: Desk, caplog: Any) -> None:
    place(desk)
    late = desk.attach(peer("w1", 2))
    desk.attach(peer("w2", 3))  # has not been told yet what to build
    desk.agent.take(Assigned("w1", "a", 0))
    vigil, workers = desk.agent.vigil, desk.agent.station.workers
    desk.tell(late, building(60.0))
    written = workers["w1"].watch.written
    vigil.run_timers(written + 239.0)
    assert vigil.held_up == []
    for seconds in (240.0, 260.0):
        vigil.run_timers(written + seconds)
    assert vigil.held_up == ["w1 has been building its model for 320 s"]
    said = [event for event in desk.events() if event["event"] == "held_up"]
    assert [(event["worker"], event["reason"]) for event in said] == [
        ("w1", "w1 has been building its model for 300 s")
    ]
    assert len([record for record in caplog.records if "building its model" in record.getMessage()]) == 1
    desk.say(late, type="built")
    vigil.run_timers(workers["w1"].watch.heard + 1.0)
    assert vigil.held_up == []


def test_who_is_stopped_before_it_has_a_place_is_named_too(desk: Desk) -> None:
    desk.attach(peer("w1", 2))
    desk.agent.take(Assigned("w1", "a", 0))
    vigil, heard = desk.agent.vigil, desk.agent.station.workers["w1"].watch.heard
    vigil.run_timers(heard + 300.0)
    assert vigil.held_up == ["w1 has said nothing for 300 s"]
    desk.agent.take(HeadSeen(head(7, state=FINISHED)))
    vigil.run_timers(heard + 301.0)
    assert vigil.held_up == []


# ---------------------------------------------------------------- accusations


def test_a_plan_that_comes_in_time_leaves_nobody_accused(desk: Desk, accused: list[tuple[str, int]]) -> None:
    left = leave(desk, place(desk))
    assert desk.record("w0").gone == (OTHER,)
    desk.agent.vigil.run_timers(left + 0.09)
    see(desk, 8)
    desk.agent.vigil.run_timers(left + 5.0)
    assert not accused


def test_who_waits_has_the_agents_of_the_lost_and_of_the_leader_asked(desk: Desk, accused: list[Any]) -> None:
    vigil, left = desk.agent.vigil, leave(desk, place(desk))
    vigil.run_timers(left)
    assert vigil.next_timer() == left + 0.1
    vigil.run_timers(left + 0.11)
    assert accused == [("far", 7), ("lead", 7)]
    assert [event["agent"] for event in desk.events() if event["event"] == "accuses"] == ["far", "lead"]
    vigil.run_timers(left + 1.0)
    assert len(accused) == 2
    vigil.run_timers(left + 1.2)
    assert len(accused) == 4


def test_without_the_store_nobody_is_asked_and_it_is_said_once(desk: Desk, accused: list[Any], caplog: Any) -> None:
    vigil, left = desk.agent.vigil, leave(desk, place(desk))
    desk.agent._session._candidacy.down_since = left - 3.0
    for moment in (0.2, 1.2, 9.0):
        vigil.run_timers(left + moment)
    assert not accused
    said = [record.getMessage() for record in caplog.records if "cut off" in record.getMessage()]
    assert said == ["cut off from etcd for 3.2 s: w0 has left generation 7 and waits; the job may go on without it"]


def test_an_agent_that_is_asked_answers_for_its_attached_workers(desk: Desk) -> None:
    place(desk)
    gone = desk.attach(peer("w1", 2))
    desk.agent.take(PeerEvent("closed", gone))
    for generation in (7, 6):
        desk.agent.take(Accused(Accusation("agent", "far", generation, "v0 saw its connection to w0 end")))
    assert (desk.record("w0").answered, desk.record("w1").answered) == (7, 0)
    assert desk.record("w1").dead
    assert desk.events()[-1]["by"] == "far"


def test_a_verdict_is_an_event(desk: Desk) -> None:
    desk.agent.take(Judged("v0", Verdict("v0", HUNG, "v0 hangs"), 7))
    event = desk.events()[-1]
    assert (event["event"], event["worker"], event["verdict"], event["reason"]) == ("verdict", "v0", HUNG, "v0 hangs")

"""The agent's loop, driven item by item: nothing that a worker says, or that lies in the store, may end it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.desk import Desk, head, peer

from reknit.rendezvous.records import FINISHED, LOST, Axes, Name, Spec
from reknit.rendezvous.session.events import Assigned, HeadSeen
from reknit.runtime.config import Config
from reknit.runtime.events import EventLog
from reknit.runtime.fleet import Worker
from reknit.runtime.ipc.server import PeerEvent
from reknit.runtime.keeper import Keeper
from reknit.runtime.plans import worker_settings
from reknit.runtime.supervisor.supervisor import Exited


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.log.close()


def test_what_a_dropped_worker_had_still_said_is_left_alone(desk: Desk) -> None:
    desk.say(peer("never-here"), type="built")
    desk.attach(peer("w0", 1))
    desk.agent.take(PeerEvent("closed", peer("w0", 1)))
    desk.say(peer("w0", 1), type="ready", generation=3)
    assert not desk.dropped


def test_a_worker_whose_words_cannot_be_handled_is_dropped_and_the_others_are_heard(desk: Desk) -> None:
    bad, good = desk.attach(peer("w0", 1)), desk.attach(peer("w1", 2))
    desk.agent.station.recording.told = _fail  # type: ignore[method-assign,assignment]
    desk.say(bad, type="event", event="committed", t=1.0, generation=1)
    assert [dropped for dropped, _ in desk.dropped] == [bad]
    desk.say(good, type="built")
    member = desk.agent.station.workers["w1"].member
    assert member is not None
    assert member.built


def test_which_checkpoints_a_worker_could_restore_is_in_its_record(desk: Desk) -> None:
    worker, members = desk.attach(peer("w0", 1)), desk.agent._session._members
    desk.say(worker, type="built", restorable=[300, 200])
    assert members["w0"].restorable == (300, 200)
    desk.say(worker, type="checkpoints", steps=[400, 300])
    assert members["w0"].restorable == (400, 300)
    desk.say(worker, type="checkpoints", steps=[])
    assert not members["w0"].restorable
    for wrong in ("400", [-1], [1.5], [True], list(range(1000))):
        desk.attach(peer("w0", 1))
        desk.say(worker, type="checkpoints", steps=wrong)
        assert desk.dropped
        desk.dropped.clear()


def test_what_a_worker_says_of_the_last_checkpoint_is_in_its_record_and_in_its_next_greeting(desk: Desk) -> None:
    worker, members = desk.attach(peer("w0", 1)), desk.agent._session._members
    desk.say(worker, type="built", restorable=[], keeps=True)
    for generation, newest in ((3, 3), (2, 3)):
        desk.say(worker, type="closed", generation=generation)
        assert (members["w0"].keeps, members["w0"].closed) == (True, newest)
    desk.attach(peer("w1", 2, keeps=True, closed=4))
    assert (members["w1"].keeps, members["w1"].closed) == (True, 4)


def test_a_complete_checkpoint_and_a_way_back_to_it_are_said(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    worker = desk.attach(peer("w0", 1))
    with caplog.at_level("INFO"):
        for event, more in (("checkpoint", {"complete": False}), ("checkpoint", {"complete": True}), ("restored", {})):
            desk.say(worker, type="event", event=event, t=1.0, generation=1, step=300, **more)
    assert [r.getMessage() for r in caplog.records if "300" in r.getMessage()] == [
        "the checkpoint of step 300 is complete",
        "w0 is back at step 300, from the checkpoint",
    ]


def _fail(*_: Any) -> None:
    raise RuntimeError("not to be handled")


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "committed", "t": 1.0, "generation": 1, "self": 1, "worker": "w9", "fields": 2},
        {"event": "healed", "t": 1.0, "generation": 1, "bytes": -1},
        {"event": "healed", "t": 1.0, "generation": 1, "bytes": 10**400},
        {"event": "reinit_done", "t": 1.0, "generation": 1, "seconds": float("nan")},
        {"event": "committed", "t": 1.0, "generation": 1, "step": 10**400},
        {"event": "committed", "t": 1.0, "generation": 1, "loss": [float("inf"), {"x": float("nan")}]},
        {"event": "committed", "t": float("nan"), "generation": 1},
        {"event": "committed", "t": 10**400, "generation": 1},
        {"event": "committed", "t": 1.0, "generation": 10**400},
        {"event": 5, "t": None, "generation": True},
        {},
    ],
)
def test_an_event_may_say_anything_and_makes_a_whole_line_of_the_agents_own(desk: Desk, fields: dict[str, Any]) -> None:
    who = desk.attach(peer("w0"))
    desk.tell(who, {"type": "event", **fields})
    desk.say(who, type="event", event="committed", t=2.0, generation=1, step=7)
    assert not desk.dropped
    last = desk.events()[-1]
    assert (last["t"], last["step"]) == (2.0, 7)
    assert all(event["worker"] == "w0" for event in desk.events() if event["event"] in ("committed", "healed"))


@pytest.mark.parametrize(
    "message",
    [{"type": "ready"}, {"type": "ready", "generation": 2**62}, {"type": "left", "generation": 1, "pristine": 3}],
)
def test_a_report_that_does_not_fit_drops_its_worker_alone(desk: Desk, message: dict[str, Any]) -> None:
    who = desk.attach(peer("w0"))
    desk.say(who, **message)
    assert [dropped for dropped, _ in desk.dropped] == [who]
    assert desk.agent.station.server.counters["malformed"] == 1


def test_garbage_from_the_store_ends_nothing(desk: Desk) -> None:
    desk.attach(peer("w0"))
    desk.agent.take(Assigned("nobody", "x", 5))
    desk.agent.take(HeadSeen(None))  # type: ignore[arg-type]
    desk.agent.take(HeadSeen(head(1)))
    assert desk.events()[-1]["event"] == "plan"


def test_a_full_disk_is_told_once_and_leaves_whole_lines(tmp_path: Path, caplog: Any, monkeypatch: Any) -> None:
    log = EventLog(tmp_path / "events")
    assert not (tmp_path / "events").stat().st_mode & 0o007, "it is not everybody's to read"
    log.write("one", None, 0)
    write, room = os.write, 10

    def full(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        count = write(descriptor, data[:room])
        room -= count
        return count

    monkeypatch.setattr(os, "write", full)
    log.write("two", None, 0)
    log.write("three", None, 0)
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    log.write("four", None, 0)
    log.close()
    lines = [json.loads(line)["event"] for line in (tmp_path / "events").read_text().splitlines()]
    assert (lines, log.lost) == (["one", "four"], 2)
    assert [record.getMessage().count("No space left") for record in caplog.records] == [1]


# ---------------------------------------------------------------- runs of one job


def test_a_worker_that_comes_when_the_job_has_finished_is_sent_home_and_is_no_member(desk: Desk) -> None:
    desk.agent.take(HeadSeen(head(3)))
    desk.agent.take(HeadSeen(head(4, state=FINISHED, spares=2)))
    assert desk.events()[-1]["spares"] == 2
    late = desk.attach(peer("late"))
    assert [(who, said["view"]["head"]["state"]) for who, said in desk.sent] == [(late, FINISHED)]
    assert not desk.agent._session._members
    desk.agent.take(HeadSeen(head(5)))  # somebody has started the job again
    assert desk.events()[-1]["generation"] == 4


def test_how_an_earlier_run_ended_is_no_news(desk: Desk) -> None:
    desk.agent.plans.earlier = 4
    desk.agent.take(HeadSeen(head(4, state=LOST)))
    assert desk.agent.station.ending is None
    desk.attach(peer("w0"))
    assert list(desk.agent._session._members) == ["w0"]
    desk.agent.take(HeadSeen(head(5, state=LOST)))
    assert desk.agent.station.ending is not None
    code, reason = desk.agent.station.ending
    assert code == 3
    assert "started again" in reason


# ---------------------------------------------------------------- a sidecar's workers come and go


def test_a_second_living_process_of_one_worker_is_refused_and_changes_nothing(desk: Desk) -> None:
    first = desk.attach(peer("w0", 1))
    second = desk.attach(peer("w0", 2, "b"))
    assert [dropped for dropped, _ in desk.dropped] == [second]
    assert desk.sent[-1][1]["type"] == "refused"
    assert "REKNIT_WORKER_ID" in desk.sent[-1][1]["reason"]
    desk.agent.take(PeerEvent("closed", second))
    worker = desk.agent.station.workers["w0"]
    assert (worker.peer, worker.name) == (first, ("w0", "a"))
    desk.agent.take(PeerEvent("closed", first))
    assert desk.attach(peer("w0", 3, "c")) == worker.peer


def test_a_bad_greeting_does_not_make_a_slot(desk: Desk) -> None:
    desk.attach(peer("w0", 1, address="nowhere"))
    desk.attach(peer("w1", 2, coordinate=-1))
    desk.attach(peer("w2", 3, ready=2**62))
    assert len(desk.dropped) == 3
    assert desk.agent.station.server.counters["malformed"] == 3
    assert not desk.agent.station.workers


REPORTED: dict[str, Any] = {"built": True, "ready": 6, "left": 5, "committed": [6, 40], "pristine": False}
REPORTED["restorable"] = [40, 20]


def test_a_process_that_attaches_again_is_the_member_that_it_was(desk: Desk) -> None:
    first = desk.attach(peer("w0", 1))
    desk.agent.take(Assigned("w0", "a", 1))
    assert [said["type"] for _, said in desk.sent] == ["assigned"]
    desk.agent.take(HeadSeen(head(7)))
    desk.agent.take(PeerEvent("closed", first))
    assert desk.agent._session._members["w0"].dead
    again = desk.attach(replace(first, number=2, hello={"address": "127.0.0.1:5000", **REPORTED}))
    member = desk.agent._session._members["w0"]
    assert (member.coordinate, member.built, member.ready, member.left) == (1, True, 6, 5)
    assert (member.committed, member.pristine, member.finished, member.dead) == ((6, 40), False, False, False)
    assert member.restorable == (40, 20)
    told = [said for who, said in desk.sent if who == again]
    assert [(said["type"], said["view"]["head"]["generation"]) for said in told] == [("plan", 7)]


def test_what_a_worker_had_said_is_not_forgotten_if_its_greeting_does_not_repeat_it(desk: Desk) -> None:
    first = desk.attach(peer("w0", 1))
    desk.say(first, type="built")
    desk.say(first, type="ready", generation=6, committed=[6, 40])
    desk.agent.take(PeerEvent("closed", first))
    desk.attach(replace(first, number=2))
    member = desk.agent._session._members["w0"]
    assert (member.built, member.ready, member.committed, member.pristine) == (True, 6, (6, 40), False)


def test_a_new_agent_learns_from_the_greeting_who_its_workers_are(desk: Desk) -> None:
    desk.agent.take(HeadSeen(head(7)))
    evidence: dict[str, Any] = {"gone": [["w1", "a"]], "absent": [["w2", "b"]]}
    desk.attach(peer("w0", 1, coordinate=1, finished=True, **evidence, **REPORTED))
    member = desk.agent._session._members["w0"]
    assert (member.coordinate, member.finished, member.ready) == (1, True, 6)
    assert (member.gone, member.absent) == ((Name("w1", "a"),), (Name("w2", "b"),))
    assert desk.agent.station.workers["w0"].finished
    assert [said["type"] for _, said in desk.sent] == ["plan"]


def test_a_new_process_of_a_worker_has_no_coordinate_yet(desk: Desk) -> None:
    first = desk.attach(peer("w0", 1))
    desk.agent.take(Assigned("w0", "a", 1))
    desk.agent.take(PeerEvent("closed", first))
    desk.attach(peer("w0", 2, "b"))
    assert desk.agent._session._members["w0"].coordinate is None


def test_a_worker_that_shall_start_afresh_reads_so_and_is_not_cut_off(desk: Desk) -> None:
    first = desk.attach(peer("w0", 1))
    desk.agent.take(HeadSeen(head(7, restart=(Name("w0", "a"),))))
    assert not desk.dropped
    assert [(who, said["view"]["head"]["restart"]) for who, said in desk.sent] == [(first, [["w0", "a"]])]


def test_workers_are_told_the_jobs_shape_and_not_this_agents_wish(tmp_path: Path) -> None:
    settings = worker_settings(Config(None, spec=Spec(Axes(), 1, 2)), Spec(Axes(2, 3), 1, 9))
    assert (settings.max_replicas, settings.axes) == (9, Axes(2, 3))


# ---------------------------------------------------------------- the clock


def test_what_is_due_is_done_when_all_that_had_come_in_is_taken_in_though_more_has_come(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, took, ran = desk.agent, list[object](), list[list[object]]()
    monkeypatch.setattr(agent, "take", took.append)
    monkeypatch.setattr(
        agent.vigil, "run_timers", lambda now: ran.append([one for one in took if isinstance(one, str)])
    )
    for one in "abc":
        agent._inbox.put(one)
    for one in "def":  # there is always more
        agent._take_one()
        agent._inbox.put(one)
    assert ran == []
    agent._take_one()
    assert ran == [["a", "b", "c"]]
    while not agent._inbox.empty():
        agent._take_one()
    assert ran[1:] == [["a", "b", "c", "d", "e", "f"]]


# ---------------------------------------------------------------- the keeper


class Kept:
    """A keeper whose supervisor runs nothing."""

    def __init__(self) -> None:
        self.worker = Worker("w0", 0)
        self.told: list[str] = []
        self.ended: list[tuple[int, str]] = []
        self.keeper = Keeper(
            Config("train.py"),
            {"w0": self.worker},
            {},
            lambda event: None,
            lambda name, worker, **fields: self.told.append(name),
            lambda code, reason: self.ended.append((code, reason)),
        )

    def exit(self, code: int | None, *, finished: bool = False, job_finished: bool = False) -> float | None:
        """One exit; return the delay until the restart, None for none."""
        self.worker.forget_process()
        self.worker.finished = finished
        before = time.monotonic()
        self.keeper.handle(Exited("w0", 1, code, 0.1), job_finished)
        at = self.worker.restart_at
        assert self.worker.over == (at is None)
        return None if at is None else round(at - before, 1)


def test_a_worker_that_finished_and_was_then_killed_is_started_again_unless_the_job_has_finished() -> None:
    kept = Kept()
    assert kept.exit(0, finished=True) is None
    assert kept.told == []
    assert kept.exit(-9, finished=True, job_finished=True) is None
    assert kept.exit(-9, finished=True) == 0.0
    assert kept.told == ["worker_died", "restart"]
    assert not kept.ended


def test_a_script_that_goes_on_asking_to_be_started_afresh_is_slowed_down() -> None:
    kept = Kept()
    assert [kept.exit(75) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert kept.keeper.last_failure is None
    assert not kept.ended

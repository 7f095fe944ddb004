"""What an agent tells of a worker follows from its events, its pulses and its silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.desk import Desk, head, peer

from reknit.rendezvous.parts import View
from reknit.rendezvous.records import BUSY, LONG, SILENT, WAITS, Name, Place, Replica
from reknit.rendezvous.session.events import Assigned, LookedAt
from reknit.rendezvous.shows import GETS_ON, Show, Shown
from reknit.runtime.showing import BUILDING, ENDING, FINISHED, QUIET, SPARE, STARTING, show_of

HANG = 30.0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    yield desk
    desk.log.close()


def place(desk: Desk, worker: str = "w0", generation: int = 1) -> None:
    """Give a worker a place."""
    found = desk.agent.station.workers[worker]
    assert found.name is not None
    replica = Replica(0, generation, (Place(found.name, "here", "127.0.0.1:5000", generation),))
    found.view = View(head(generation, replicas=1), replica)


def told(desk: Desk, later: float = 0.0, stopped: tuple[str, ...] = ()) -> Shown:
    """What is told of the first worker, `later` seconds after its last word."""
    workers = desk.agent.station.workers
    now = workers["w0"].watch.heard + later
    return show_of("host0", workers.values(), stopped, HANG, now).workers[0]


def event(desk: Desk, name: str, **fields: Any) -> None:
    desk.say(peer("w0"), type="event", event=name, t=1.0, generation=1, **fields)


def pulse(desk: Desk, kind: str, phase: str, seconds: float) -> None:
    desk.say(peer("w0"), type="pulse", kind=kind, phase=phase, seconds=seconds, limit=60.0, generation=1, step=5)


def test_a_worker_on_its_way_to_a_place(desk: Desk) -> None:
    desk.attach(peer("w0"))
    assert told(desk) == Shown(Name("w0", "a"), 4001, SPARE, 0.0)
    desk.agent.take(Assigned("w0", "a", 0))
    assert told(desk, 2.0).phase == BUILDING
    desk.say(peer("w0"), type="built", restorable=[])
    assert told(desk, 100.0).phase == SPARE, "nobody waits for it, so its silence means nothing"
    place(desk)
    event(desk, "reinit_begin")
    assert told(desk, 0.2).phase == "reinit"
    assert told(desk, 0.2).phase_seconds == pytest.approx(0.2, abs=0.01)
    event(desk, "reinit_done", step=7, seconds=0.1)
    assert (told(desk).phase, told(desk).step, told(desk).committed_age) == ("step", 7, None)


def test_one_that_commits_steps_gets_on_and_one_that_does_not_tells_what_it_is_at(desk: Desk) -> None:
    desk.attach(peer("w0"))
    place(desk)
    event(desk, "committed", step=8)
    seen = told(desk, 0.5)
    assert (seen.kind, seen.phase, seen.step) == (GETS_ON, "step", 8)
    assert seen.committed_age == seen.phase_seconds == pytest.approx(0.5, abs=0.01)
    pulse(desk, WAITS, "reduce", 1.2)
    seen = told(desk, 0.3)
    assert (seen.kind, seen.phase, seen.limit, seen.step) == (WAITS, "reduce", 60.0, 8)
    assert seen.phase_seconds == pytest.approx(1.5)
    pulse(desk, WAITS, "reduce", 0.0)
    assert (told(desk).kind, told(desk).phase) == (GETS_ON, "step"), "that is over"
    pulse(desk, BUSY, "forward and backward", 3.0)
    event(desk, "committed", step=9)
    assert (told(desk).kind, told(desk).step) == (GETS_ON, 9)
    event(desk, "committed", step="many")
    assert told(desk).step == 9
    event(desk, "reinit_done", step=4)
    assert told(desk).step == 4, "the job went back to a checkpoint"


def test_who_is_stopped_or_says_nothing_for_long_is_silent_unless_that_was_announced(desk: Desk) -> None:
    desk.attach(peer("w0"))
    place(desk)
    event(desk, "committed", step=8)
    assert told(desk, QUIET - 0.1).kind == GETS_ON
    seen = told(desk, QUIET + 1)
    assert (seen.kind, seen.phase, seen.limit) == (SILENT, "says nothing", HANG)
    assert seen.phase_seconds == pytest.approx(QUIET + 1)
    seen = told(desk, 0.1, ("w0",))
    assert (seen.kind, seen.phase) == (SILENT, "stopped")
    pulse(desk, LONG, "evaluation", 2.0)
    seen = told(desk, 20.0)
    assert (seen.kind, seen.phase) == (LONG, "evaluation")
    assert seen.phase_seconds == pytest.approx(22.0)
    assert told(desk, 20.0, ("w0",)).kind == SILENT


def test_who_ends_is_at_its_end(desk: Desk) -> None:
    desk.attach(peer("w0"))
    place(desk)
    desk.say(peer("w0"), type="finished", step=9)
    assert told(desk, 50.0).phase == FINISHED
    desk.say(peer("w0"), type="gone")
    assert told(desk).phase == ENDING
    worker = desk.agent.station.workers["w0"]
    worker.gone, worker.peer = False, None
    assert told(desk).phase == STARTING
    worker.over = True
    assert show_of("host0", desk.agent.station.workers.values(), (), HANG, 0.0).workers == ()


def test_a_new_process_has_told_nothing_yet(desk: Desk) -> None:
    desk.attach(peer("w0", 1))
    event(desk, "committed", step=8)
    desk.agent.station.workers["w0"].peer = None
    desk.attach(peer("w0", 2, "b"))
    assert told(desk) == Shown(Name("w0", "b"), 4002, SPARE, 0.0)


def test_the_loop_answers_when_somebody_looks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Show] = []
    monkeypatch.setattr(desk.agent.station.session, "tell", answers.append)
    desk.attach(peer("w0"))
    desk.agent.take(LookedAt())
    assert [(show.agent, [one.name.worker_id for one in show.workers]) for show in answers] == [
        (desk.agent.station.config.agent, ["w0"])
    ]

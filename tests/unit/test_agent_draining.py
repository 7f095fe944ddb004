"""An agent whose workers are asked to leave, driven item by item."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.desk import Desk, head, peer

from reknit.rendezvous.draining import DrainOrder
from reknit.rendezvous.records import Member, Name, Place, Plan, Replica
from reknit.rendezvous.session.events import DrainAsked, JobRead
from reknit.runtime.agent import _Signal
from reknit.runtime.config import Config, ConfigError, parse_drain_signal
from reknit.runtime.departure import VARIABLE, Departure
from reknit.runtime.fleet import Drain, Worker
from reknit.runtime.ipc.server import PeerEvent
from reknit.runtime.keeper import OVERDUE, Keeper, environment_of_workers
from reknit.runtime.supervisor.supervisor import Exited


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path, drain_signal="USR1")
    yield desk
    desk.log.close()


def told(desk: Desk, kind: str) -> list[str]:
    return [event["worker"] for event in desk.events() if event["event"] == kind]


def later(desk: Desk, seconds: float) -> None:
    desk.agent.draining.run_timers(time.monotonic() + seconds)


def drain_of(desk: Desk, worker: str = "w0") -> Drain:
    drain = desk.agent.station.workers[worker].drain
    assert drain is not None
    return drain


def plan_without(worker: str, *others: str) -> JobRead:
    """A generation 5 that runs without `worker`, which was placed in 4 and has left it."""
    places = tuple(Place(Name(other, "a"), "host", "", 1) for other in others)
    replicas = tuple(Replica(slot, 1, (place,)) for slot, place in enumerate(places))
    members = [Member(other, "a", "agent", "host", "", ready=5) for other in others]
    return JobRead(Plan(5, "why", replicas=replicas), (*members, Member(worker, "a", "agent", "host", "", left=4)))


# ---------------------------------------------------------------- who asks


def test_a_workers_own_signal_marks_it_and_no_other(desk: Desk) -> None:
    first = desk.attach(peer("w0", 1))
    desk.attach(peer("w1", 2))
    desk.say(first, type="drain", signal="SIGTERM")
    assert (desk.record("w0").draining, desk.record("w1").draining) == (True, False)
    assert desk.events()[-1]["by"] == "SIGTERM to it"
    desk.say(first, type="drain", signal="SIGTERM")
    assert told(desk, "draining") == ["w0"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_agent_marks_all_its_workers_and_those_who_come_later(desk: Desk, number: int) -> None:
    desk.attach(peer("w0", 1))
    desk.agent.take(_Signal(number))
    desk.attach(peer("w1", 2))
    assert desk.record("w0").draining
    assert desk.record("w1").draining
    assert desk.agent.station.ending is None
    assert not desk.agent._has_ended()


def test_a_second_sigterm_ends_the_agent_and_a_second_drain_signal_does_not(desk: Desk) -> None:
    desk.attach(peer("w0", 1))
    desk.agent.take(_Signal(signal.SIGTERM))
    desk.agent.take(_Signal(signal.SIGUSR1))
    desk.agent.take(_Signal(signal.SIGTERM))  # delivered twice, as by `timeout` to a process group
    assert desk.agent.station.ending is None
    desk.agent.draining.asked_at -= 2.0
    desk.agent.take(_Signal(signal.SIGTERM))
    assert desk.agent.station.ending is not None
    assert desk.agent.station.ending[0] == 143


def test_ctrl_c_drains_nobody(desk: Desk) -> None:
    desk.agent.take(_Signal(signal.SIGINT))
    assert desk.agent.station.ending == (130, "stopped by SIGINT")


def test_an_order_is_for_one_incarnation_and_only_ever_shortens_the_time(desk: Desk) -> None:
    desk.attach(peer("w0", 1))
    desk.agent.take(DrainAsked(DrainOrder(Name("w0", "earlier"), 1.0, "somebody")))
    desk.agent.take(DrainAsked(DrainOrder(Name("nobody", "a"), 1.0, "somebody")))
    assert not desk.record("w0").draining
    desk.agent.take(DrainAsked(DrainOrder(Name("w0", "a"), 50.0, "somebody")))
    deadline = drain_of(desk).deadline
    desk.agent.take(DrainAsked(DrainOrder(Name("w0", "a"), 90.0, "somebody")))
    assert drain_of(desk).deadline == deadline
    desk.agent.take(DrainAsked(DrainOrder(Name("w0", "a"), 5.0, "somebody")))
    assert drain_of(desk).deadline < deadline


def test_an_agent_that_is_back_goes_on_draining(desk: Desk) -> None:
    desk.attach(peer("w0", 1, draining=True))
    assert desk.record("w0").draining
    assert drain_of(desk).open


def test_a_worker_that_asks_an_agent_that_ends_is_told_to_exit(desk: Desk) -> None:
    who = desk.attach(peer("w0", 1))
    desk.agent.take(_Signal(signal.SIGINT))
    desk.say(who, type="drain", signal="SIGTERM")
    assert desk.sent[-1] == (who, {"type": "exit", "reason": "stopped by SIGINT", "forced": False})
    assert not desk.record("w0").draining


# ---------------------------------------------------------------- how it ends


def test_a_worker_that_nobody_needs_is_let_go_and_is_no_loss(desk: Desk) -> None:
    who = desk.attach(peer("w0", 1, coordinate=0, ready=4, built=True))
    desk.agent.take(_Signal(signal.SIGTERM))
    desk.agent.take(plan_without("w9", "w0", "w1"))
    assert drain_of(desk).open, "it has a place"
    desk.agent.take(plan_without("w0", "w1"))
    assert desk.sent[-1][1]["type"] == "drained"
    assert "w0" not in desk.agent._session._members
    desk.say(who, type="left", generation=5, committed=None, prepared=None, pristine=True)
    desk.agent.take(PeerEvent("closed", who))
    assert (told(desk, "drained"), told(desk, "worker_died")) == (["w0"], [])
    assert "w0" not in desk.agent._session._members
    assert desk.agent._has_ended()
    assert desk.agent._ended_by_itself() == (0, "all workers here have drained")


def test_a_worker_without_a_place_is_let_go_once_the_leader_must_know(desk: Desk, monkeypatch: Any) -> None:
    desk.attach(peer("w0", 1))
    desk.agent.take(_Signal(signal.SIGTERM))
    desk.agent.take(JobRead(None, ()))
    assert drain_of(desk).open
    drain_of(desk).since -= 1.0
    monkeypatch.setattr(type(desk.agent._session), "written", True)
    desk.agent.take(JobRead(None, ()))
    assert drain_of(desk).allowed


def test_a_store_that_has_lost_the_plan_lets_nobody_go(desk: Desk, monkeypatch: Any) -> None:
    desk.attach(peer("w0", 1, coordinate=0, ready=4, built=True))
    desk.agent.take(_Signal(signal.SIGTERM))
    drain_of(desk).since -= 1.0
    monkeypatch.setattr(type(desk.agent._session), "written", True)
    desk.agent.station.head = head(4)
    for plan in (None, Plan(3, "written back, but not the newest")):
        desk.agent.take(JobRead(plan, ()))
        assert drain_of(desk).open, "it may hold what nobody else has"
    desk.agent.take(plan_without("w0", "w1"))
    assert drain_of(desk).allowed


def test_the_job_is_read_only_while_somebody_may_go(desk: Desk, monkeypatch: Any) -> None:
    asked: list[None] = []
    monkeypatch.setattr(desk.agent._session, "request_job", lambda: asked.append(None))
    desk.attach(peer("w0", 1))
    later(desk, 1.0)
    assert not asked
    assert desk.agent.draining.next_timer() is None
    desk.agent.take(_Signal(signal.SIGTERM))
    later(desk, 2.0)
    assert len(asked) == 1


def test_at_the_deadline_a_sidecars_worker_is_lost_and_is_told_to_exit(desk: Desk) -> None:
    who = desk.attach(peer("w0", 1))
    desk.say(who, type="drain", signal="SIGTERM")
    later(desk, 121.0)
    assert desk.sent[-1] == (who, {"type": "exit", "reason": OVERDUE, "forced": True})
    assert desk.record("w0").dead
    desk.agent.take(PeerEvent("closed", who))
    assert [event["cause"] for event in desk.events() if event["event"] == "worker_died"] == [OVERDUE]
    assert desk.agent.station.ending is None, "only this worker was asked to leave"


def test_at_the_agents_deadline_it_ends_with_143(desk: Desk) -> None:
    desk.attach(peer("w0", 1))
    desk.agent.take(_Signal(signal.SIGTERM))
    later(desk, 121.0)
    assert desk.agent.station.ending is not None
    assert desk.agent.station.ending[0] == 143


def test_who_was_let_go_but_takes_long_to_end_costs_the_agent_no_failure(desk: Desk) -> None:
    desk.attach(peer("w0", 1, coordinate=0, ready=4, built=True))
    desk.agent.take(_Signal(signal.SIGTERM))
    desk.agent.take(plan_without("w0", "w1"))
    later(desk, 121.0)
    assert desk.sent[-1][1]["type"] == "exit"
    assert desk.agent.station.ending is None
    assert desk.agent._ended_by_itself()[0] == 0


def test_a_worker_that_dies_as_it_drains_is_a_loss(desk: Desk) -> None:
    who = desk.attach(peer("w0", 1))
    desk.say(who, type="drain", signal="SIGTERM")
    desk.agent.take(PeerEvent("closed", who))
    assert (told(desk, "drained"), told(desk, "worker_died")) == ([], ["w0"])
    assert desk.record("w0").dead


def test_nobody_drains_when_the_job_has_finished(desk: Desk) -> None:
    desk.attach(peer("w0", 1))
    desk.agent.station.head, desk.agent.station.finished = head(3), True
    desk.agent.take(_Signal(signal.SIGTERM))
    assert desk.agent.station.workers["w0"].drain is None


# ---------------------------------------------------------------- a keeper's workers


@pytest.mark.parametrize(
    ("allowed", "overdue", "code", "events"),
    [
        (True, False, 0, ["drained"]),
        (True, True, -9, ["drained"]),
        (False, True, -9, ["worker_died"]),
        (False, False, -9, ["worker_died"]),
    ],
)
def test_a_drained_slot_is_over_however_its_process_ended(
    allowed: bool, overdue: bool, code: int, events: list[str]
) -> None:
    worker, seen = Worker("w0", 0), []
    keeper = Keeper(Config("x"), {"w0": worker}, {}, lambda _: None, lambda n, *_, **f: seen.append((n, f)), _never)
    worker.drain = Drain("me", 0.0, 1.0, allowed, overdue)
    keeper.handle(Exited("w0", 1, code, 0.1), False)
    assert [name for name, _ in seen] == events
    assert worker.over
    assert worker.restart_at is None
    if "worker_died" in events:
        assert seen[0][1]["cause"] == (OVERDUE if overdue else "SIGKILL")


def _never(code: int, reason: str) -> None:
    raise AssertionError(reason)


def test_an_agent_that_drains_starts_nobody_again() -> None:
    waiting, dying = Worker("w0", 0, restart_at=1.0), Worker("w1", 1)
    workers = {"w0": waiting, "w1": dying}
    keeper = Keeper(Config("x"), workers, {}, lambda _: None, lambda *_, **__: None, _never)
    keeper.drain_all()
    keeper.handle(Exited("w1", 1, 1, 0.1), False)
    assert (waiting.over, dying.over, keeper.next_timer()) == (True, True, None)


# ---------------------------------------------------------------- signals


def test_the_chosen_signal_is_told_to_workers() -> None:
    assert environment_of_workers(Config("x", drain_signal="USR2"), "s")[VARIABLE] == "USR2"
    assert VARIABLE not in environment_of_workers(Config("x"), "s")
    assert parse_drain_signal("sigusr1") == parse_drain_signal("USR1") == "USR1"
    for name in ("KILL", "CHLD", "", "SIGNONE"):
        with pytest.raises(ConfigError, match="drain-signal"):
            parse_drain_signal(name)


@pytest.fixture
def clean() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGUSR2)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("clean")
def test_a_worker_tells_of_its_signals_on_a_thread_of_its_own(monkeypatch: Any) -> None:
    monkeypatch.setenv(VARIABLE, "USR2")
    wished: list[int] = []
    departure = Departure(wished.append)
    departure.install()
    assert departure.handles_sigterm
    for number in (signal.SIGTERM, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    until = time.monotonic() + 5.0
    while len(wished) < 2 and time.monotonic() < until:
        time.sleep(0.001)
    assert wished == [signal.SIGTERM, signal.SIGUSR2]


@pytest.mark.usefixtures("clean")
def test_a_scripts_own_handler_stays() -> None:
    mine: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: mine.append(number))
    departure = Departure(lambda number: pytest.fail(f"{number} was taken over"))
    departure.install()
    os.kill(os.getpid(), signal.SIGTERM)
    assert mine == [signal.SIGTERM]
    assert not departure.handles_sigterm


@pytest.mark.usefixtures("clean")
def test_a_forked_process_ends_by_the_signal_as_usual() -> None:
    departure = Departure(lambda number: None)
    departure.install()
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5.0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM

"""Whether an earlier run is over, as an agent finds out before its session starts: a store in memory, no waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import pytest

from reknit.rendezvous.codec import encode_member
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.parts import encode
from reknit.rendezvous.records import FINISHED, RUNNING, Member, Place, Plan, Replica
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session.looking_back import LONGEST, Ends, LookingBack
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Lease

KEYS = Keys("job")
TTL = 5


def member(worker: str, **fields: Any) -> Member:
    return Member(worker, "1", f"agent-{worker}", f"host-{worker}", f"127.0.0.1:{5000 + ord(worker)}", **fields)


OLD, OTHER, NEW = member("a", ready=7, pristine=False), member("b", ready=7, pristine=False), member("n")
PLACES = tuple(Replica(slot, 5, (Place(m.name, m.host, m.address, 5),)) for slot, m in enumerate((OLD, OTHER)))
PLAN = Plan(7, "it runs", RUNNING, PLACES, placed=7, origin=1, writer=3)


class World:
    """A store, a clock that sleeping moves, and what happens at which time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = MemoryStore(lambda: self.now)
        self.events: list[tuple[float, Callable[[], object]]] = []
        self.calls: list[set[str]] = []
        self.answering: set[str] = set()

    def publish(self, plan: Plan) -> None:
        head, parts = encode(plan)
        for key, value in parts.items():
            self.store.put(KEYS.prefix + key, value)
        self.store.put(KEYS.head, head)

    def write(self, written: Member, lease: Lease | None = None, ttl: float = TTL) -> Lease:
        lease = lease or self.store.grant(ttl)
        self.store.put(KEYS.member(written.worker_id), encode_member(written), lease=lease)
        return lease

    def at(self, seconds: float, event: Callable[[], object]) -> None:
        self.events.append((100.0 + seconds, event))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [event for at, event in self.events if at <= self.now]
        self.events = [(at, event) for at, event in self.events if at > self.now]
        for event in due:
            event()
        self.store.tick()

    def call(self, addresses: Collection[str]) -> bool:
        self.calls.append(set(addresses))
        return bool(self.answering.intersection(addresses))

    def look(self, patient: bool = True) -> int:
        """The earlier generation that is found."""
        rejected = Rejected(logging.getLogger("test"))
        back = LookingBack(self.store, KEYS, rejected, TTL, 1.0, lambda: self.now, self.sleep, self.call)
        return back.earlier(patient=patient)

    @property
    def took(self) -> float:
        return self.now - 100.0


@pytest.fixture
def world() -> World:
    world = World()
    world.publish(PLAN)
    return world


def test_a_job_that_was_killed_whole_is_over_when_its_records_are_gone(world: World) -> None:
    world.write(OLD)
    world.write(OTHER, ttl=3)
    world.write(NEW)  # of another host, which is being started again as well
    assert world.look() == 7
    assert TTL <= world.took <= TTL + 1


@pytest.mark.parametrize("ttl", [2, 5, 15])
def test_an_agent_that_renews_its_lease_lives_although_its_records_never_change(world: World, ttl: int) -> None:
    world.write(OTHER, ttl=ttl)
    lease = world.write(OLD, ttl=ttl)
    for number in range(100):
        world.at(number * ttl / 3, lambda: world.store.keep_alive(lease))
    assert world.look() == 0
    assert world.took <= 2 * ttl / 3 + 1.5


@pytest.mark.parametrize("late", [0.5, 4.5])
def test_who_writes_lives(world: World, late: float) -> None:
    """A lease that was lost, and the records written anew: or one that says that a worker has died."""
    first, second = world.write(OLD), world.write(OTHER)
    world.at(late, lambda: world.store.revoke(first))
    world.at(late, lambda: world.write(replace(OTHER, dead=True), second))
    assert world.look() == 0


def test_where_somebody_leads_meanwhile_the_job_runs(world: World) -> None:
    world.write(OLD)
    world.at(1.0, lambda: world.publish(replace(PLAN, generation=8)))
    assert world.look() == 0


def test_what_nobody_renews_and_yet_stands_is_not_waited_for_for_ever(world: World) -> None:
    world.write(OLD, ttl=3600)
    assert world.look() == 0
    assert world.took <= LONGEST + 1


def test_without_a_plan_or_after_a_finish_nothing_is_waited_for(world: World) -> None:
    world.write(OLD)
    world.publish(replace(PLAN, state=FINISHED, replicas=()))
    assert world.look() == 7
    world.store.delete(KEYS.head)
    assert world.look() == 0
    assert (world.took, world.calls) == (0, [])


def test_an_agent_that_goes_on_with_its_lease_does_not_wait(world: World) -> None:
    world.write(OLD)
    assert world.look(patient=False) == 0
    world.write(replace(OLD, dead=True))
    assert world.look(patient=False) == 7
    world.answering = {OTHER.address}
    assert world.look(patient=False) == 0
    assert world.took == 0


def test_workers_that_answer_without_records_are_cut_off_from_the_store(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(NEW)
    world.answering = {OTHER.address}
    assert world.look() == 0
    assert world.calls[0] == {OLD.address, OTHER.address}
    assert TTL < world.took <= TTL + 3
    assert "cut off from the store" in caplog.text


def test_workers_that_end_as_their_agent_was_killed_are_waited_out(world: World) -> None:
    world.answering = {OLD.address}
    world.at(TTL + 1, world.answering.clear)  # so late if its records were revoked by the agent that is back
    assert world.look() == 7
    assert TTL < world.took <= TTL + 2


def test_who_comes_back_meanwhile_lives(world: World) -> None:
    world.answering = {OLD.address}
    world.at(1.0, lambda: world.write(OLD))
    world.at(1.0, world.answering.clear)
    assert world.look() == 0


def test_a_new_worker_at_an_old_ones_address_is_not_the_old_one(world: World) -> None:
    world.write(replace(NEW, address=OLD.address))
    world.answering = {OLD.address}
    assert world.look() == 7
    assert world.calls == [{OTHER.address}]


def test_when_nobody_answers_the_job_starts_again_at_once(world: World) -> None:
    assert world.look() == 7
    assert world.took == 0


def test_seconds_are_rounded_down_so_only_what_cannot_be_otherwise_is_a_renewal() -> None:
    ends = Ends()
    assert not ends.later(1, 0.0, 0.1, 4)  # ends at 4.0 at the earliest, at 5.1 at the latest
    assert not ends.later(1, 0.9, 1.0, 4)
    assert ends.later(1, 1.2, 1.3, 4)
    assert not ends.later(2, 1.2, 1.3, 4)
    ends = Ends()
    assert not ends.later(1, 0.0, 0.1, 0)
    assert not ends.later(1, 9.0, 9.1, 0)  # it has ended, but the store has not come to it

"""Sessions and their leader, on the store in memory and on a real etcd alike."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from reknit.rendezvous.accusation import Accusation, AgentRecord, decode_accusation, encode_accusation, encode_agent
from reknit.rendezvous.codec import decode_member, encode_member, encode_spec
from reknit.rendezvous.draining import DrainOrder, encode_order
from reknit.rendezvous.errors import Deposed, StoreRefused
from reknit.rendezvous.jobs import jobs_in
from reknit.rendezvous.keys import Assignment, Keys, encode_assignment
from reknit.rendezvous.leader.chunks import OPERATIONS
from reknit.rendezvous.leader.leader import Leader
from reknit.rendezvous.leader.publisher import KEPT, Publisher
from reknit.rendezvous.parts import Head, View, decode_head, parts_prefix
from reknit.rendezvous.plan import Patience
from reknit.rendezvous.records import (
    FINISHED,
    RUNNING,
    WAITING,
    Axes,
    Member,
    Name,
    Place,
    Plan,
    Replica,
    Spec,
)
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.session import events as session_events
from reknit.rendezvous.session.candidacy import Timing
from reknit.rendezvous.session.events import (
    Accused,
    Assigned,
    Elected,
    HeadSeen,
    LeaseEnded,
    LeaseGranted,
    SessionEvent,
    StoreDown,
    StoreUp,
    ViewFetched,
)
from reknit.rendezvous.session.session import Session, SpecMismatchError
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.store.etcd_messages import etcd3
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Lease, Put, Store
from reknit.rendezvous.whole_job import JobRecords

DeposedEvent = session_events.Deposed

_jobs = itertools.count()
logger = logging.getLogger("test")
_Event = TypeVar("_Event")

TIMING = Timing(ttl=3.0, retry=0.05, operation=1.0)
# whoever is wanted comes within the window on any machine; one test's losses come faster than real ones
PATIENCE = Patience(join_window=10.0, report_grace=0.05, burst=0.0)


class Agent:
    """A session and a leader, tied together as the agent does it, with all that was told."""

    def __init__(
        self, store: Store, job: str, agent_id: str, detect: float, patience: Patience, leads: bool, adopts: bool
    ) -> None:
        self.store, self.job, self.agent_id, self.leads = store, job, agent_id, leads
        self.events: list[tuple[float, SessionEvent]] = []
        self._told = threading.Condition()
        self.session = Session(store, job, agent_id, self._take, TIMING)
        self.leader = Leader(store, job, self.session, patience=patience, detect=detect, operation=1.0)
        self.leader.start()
        self.adopted = self.session.adopt("node") if adopts else []
        self.session.set_agent(AgentRecord(agent_id, "host", os.getpid(), node="node"))
        self.session.start()

    def _take(self, event: SessionEvent) -> None:
        if isinstance(event, Elected):
            if self.leads:
                self.leader.lead(event.revision)
        elif isinstance(event, DeposedEvent):
            self.leader.follow()
        with self._told:
            self.events.append((time.monotonic(), event))
            self._told.notify_all()

    def told(self, kind: type[_Event]) -> list[_Event]:
        with self._told:
            return [event for _, event in self.events if isinstance(event, kind)]

    def wait_for(
        self, kind: type[_Event], fits: Callable[[Any], object] = lambda _: True, timeout: float = 15
    ) -> _Event:
        """Wait for an event that fits, which may have come already."""
        found: list[_Event] = []

        def come() -> bool:
            found[:] = [event for _, event in self.events if isinstance(event, kind) and fits(event)]
            return bool(found)

        with self._told:
            if not self._told.wait_for(come, timeout):
                pytest.fail(
                    f"{self.agent_id} waited {timeout} s in vain for {kind.__name__}; it was told {self.events}"
                )
        return found[0]

    def when(self, event: object) -> float:
        with self._told:
            return next(at for at, told in self.events if told is event)

    def heads(self) -> list[Head]:
        return [event.head for event in self.told(HeadSeen)]

    def close(self, *, revoke: bool = True) -> None:
        self.leader.close()
        self.session.close(revoke=revoke)


class World:
    """Agents of one job, each with a store of its own (in memory there is but one)."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self.job = f"job-{next(_jobs)}"
        self.keys = Keys(self.job)
        self.store = open_store()
        self.agents: list[Agent] = []

    def agent(
        self,
        detect: float = 5.0,
        patience: Patience = PATIENCE,
        *,
        leads: bool = True,
        adopts: bool = False,
        name: str = "",
    ) -> Agent:
        """An agent that runs; if it is not to lead, nobody reads the records, but it still campaigns."""
        name = name or f"agent-{len(self.agents)}"
        agent = Agent(self._open_store(), self.job, name, detect, patience, leads, adopts)
        self.agents.append(agent)
        return agent

    def spec(self, replicas: int, pipe: int = 1, least: int = 1) -> Spec:
        spec = Spec(Axes(pipe), least, replicas)
        self.store.put(self.keys.spec, encode_spec(spec))
        return spec

    def close(self) -> None:
        for agent in self.agents:
            agent.close()


@pytest.fixture(params=["memory", "etcd"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    stores: list[Store] = []
    if request.param == "memory":
        stores.append(MemoryStore())
        world = World(lambda: stores[0])
    else:
        server: EmbeddedEtcd = request.getfixturevalue("etcd")

        def open_store() -> Store:
            stores.append(EtcdStore(server.endpoint))
            return stores[-1]

        world = World(open_store)
    yield world
    world.close()
    for store in stores:
        store.close()


def member(number: int, agent: str = "agent-0", **known: Any) -> Member:
    fields: dict[str, Any] = {"coordinate": 0, "built": True, **known}
    return Member(f"w{number}", f"i{number}", agent, f"host-{number}", f"127.0.0.1:{5000 + number}", **fields)


def led(agent: Agent) -> Elected:
    return agent.wait_for(Elected)


def seen(agent: Agent, generation: int) -> Head:
    return agent.wait_for(HeadSeen, lambda event: event.head.generation >= generation).head


def is_for(name: Name) -> Callable[[ViewFetched], bool]:
    return lambda event: event.name == name


def is_of(generation: int) -> Callable[[HeadSeen | ViewFetched], bool]:
    def fits(event: HeadSeen | ViewFetched) -> bool:
        return (event.head if isinstance(event, HeadSeen) else event.view).generation == generation

    return fits


# ---------------------------------------------------------------- records, lease and election


def test_a_record_lies_in_the_store_under_the_lease_and_goes_when_the_session_closes(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent()
    agent.session.set_member(member(1))
    wait_until(lambda: world.store.get(world.keys.member("w1")))
    entry = world.store.get(world.keys.member("w1"))
    assert entry is not None
    assert entry.value == encode_member(member(1))
    assert entry.lease == agent.session.state.lease
    agent.close()
    assert world.store.get(world.keys.member("w1")) is None
    assert world.store.get(world.keys.leader) is None


def test_who_was_dismissed_as_the_session_closed_has_left_in_order_to_whoever_looks(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent, numbers = world.agent(), range(70)
    for number in numbers:
        agent.session.set_member(member(number))
        order = encode_order(DrainOrder(member(number).name, 5.0, "test"))
        world.store.put(world.keys.drain(f"w{number}"), order)
    wait_until(lambda: agent.session.written)
    for number in numbers:
        agent.session.dismiss(f"w{number}")
    agent.close()
    left = [number for number in numbers if world.store.get(world.keys.drain(f"w{number}"))]
    assert not left, "their records went with the lease, but the orders say that they were lost"


def test_only_the_newest_record_needs_to_be_written_and_it_is(world: World, wait_until: Callable[..., None]) -> None:
    agent = world.agent()
    for left in range(200):
        agent.session.set_member(member(1, left=left))
    wait_until(lambda: agent.session.written)
    entry = world.store.get(world.keys.member("w1"))
    assert entry is not None
    assert entry.value == encode_member(member(1, left=199))


def test_a_removed_record_stays_removed_whatever_was_declared_before(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent()
    for attempt in range(30):
        agent.session.set_member(member(1, left=attempt))
        agent.session.remove_member("w1")
        wait_until(lambda: agent.session.written)
        assert world.store.get(world.keys.member("w1")) is None
    agent.session.set_member(member(1, left=99))
    wait_until(lambda: agent.session.written)
    assert world.store.get(world.keys.member("w1")) is not None


def test_a_lost_lease_is_granted_anew_and_the_records_written_again(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent()
    agent.session.set_member(member(1))
    led(agent)
    wait_until(lambda: agent.session.written)
    before = world.store.get(world.keys.member("w1"))
    assert before is not None
    lease = agent.wait_for(LeaseGranted)
    world.store.revoke(Lease(lease.lease, int(lease.ttl)))
    agent.session.set_member(member(2))  # finds it out at once; a renewal would, too
    again = agent.wait_for(LeaseGranted, lambda event: event.again)
    agent.wait_for(LeaseEnded)
    wait_until(lambda: agent.session.written)
    for number in (1, 2):
        entry = world.store.get(world.keys.member(f"w{number}"))
        assert entry is not None
        assert entry.lease == again.lease
    agent.wait_for(Elected, lambda event: event is not agent.told(Elected)[0])


def test_exactly_one_agent_leads_and_the_others_follow_within_milliseconds(world: World) -> None:
    first = world.agent()
    led(first)
    second, third = world.agent(), world.agent()
    second.wait_for(LeaseGranted)
    third.wait_for(LeaseGranted)
    begun = time.monotonic()
    first.close()
    while not (second.told(Elected) or third.told(Elected)):
        assert time.monotonic() - begun < 10
        time.sleep(0.001)
    heir = second if second.told(Elected) else third
    delay = heir.when(heir.told(Elected)[0]) - begun
    print(f"close of the leader -> next one elected: {delay * 1e3:.1f} ms")
    assert delay < 1.0
    assert first.told(DeposedEvent)
    assert not (second.told(Elected) and third.told(Elected))
    assert heir.told(Elected)[0].revision > first.told(Elected)[0].revision


def test_a_leader_key_that_hangs_on_no_lease_does_not_stand_in_anybodys_way(world: World) -> None:
    world.store.put(world.keys.leader, b"\xff not an agent")
    agent = world.agent()
    first = led(agent)
    world.store.put(world.keys.leader, b"garbage again")
    agent.wait_for(DeposedEvent)
    agent.wait_for(Elected, lambda event: event.revision > first.revision)


def test_the_spec_that_is_stored_wins_and_other_axes_are_refused(world: World) -> None:
    agent = world.agent()
    spec = Spec(Axes(2), 1, 3)
    assert agent.session.propose_spec(spec) == spec
    assert agent.session.propose_spec(Spec(Axes(2), 1, 4)) == spec
    with pytest.raises(SpecMismatchError, match=r"pipe 2 x model 1.*pipe 4 x model 1"):
        agent.session.propose_spec(Spec(Axes(4), 1, 3))


def test_a_spec_that_cannot_be_read_is_replaced(world: World) -> None:
    world.store.put(world.keys.spec, b"garbage")
    spec = Spec(Axes(2), 1, 3)
    assert world.agent().session.propose_spec(spec) == spec


# ---------------------------------------------------------------- the dead, and agents that come back


def record(world: World, worker_id: str) -> Member:
    entry = world.store.get(world.keys.member(worker_id))
    assert entry is not None
    return decode_member(entry.value, entry.key)


def test_a_dead_worker_keeps_a_record_that_says_so_under_every_lease_until_the_next_incarnation(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent(leads=False)
    agent.session.set_member(member(1, ready=3))
    agent.session.bury("w1")
    agent.session.bury("nobody")
    wait_until(lambda: agent.session.written)
    assert record(world, "w1") == member(1, ready=3, dead=True)
    lease = agent.wait_for(LeaseGranted)
    world.store.revoke(Lease(lease.lease, int(lease.ttl)))
    agent.session.set_member(member(2))  # finds it out at once
    agent.wait_for(LeaseGranted, lambda event: event.again)
    wait_until(lambda: agent.session.written)
    assert record(world, "w1").dead
    again = replace(member(1), incarnation="again")
    agent.session.set_member(again)
    wait_until(lambda: agent.session.written)
    assert record(world, "w1") == again
    agent.session.bury("w1")
    agent.session.remove_member("w1")
    wait_until(lambda: agent.session.written)
    assert world.store.get(world.keys.member("w1")) is None


def test_under_a_new_lease_the_agents_own_record_comes_after_all_others(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent(leads=False)
    for number in range(20):
        agent.session.set_member(member(number))
    wait_until(lambda: agent.session.written)
    seen_with_members: list[int] = []

    def look(*_: object) -> None:
        there = {entry.key for entry in world.store.list(world.keys.prefix).entries}  # all at one revision
        if world.keys.agent("agent-0") in there:
            seen_with_members.append(sum(key.startswith(world.keys.members) for key in there))

    watch = world.store.watch(world.keys.prefix, look, look, prefix=True)
    for _ in range(3):
        lease = agent.session.state.lease
        assert lease is not None
        world.store.revoke(Lease(lease, 3))
        agent.session.set_member(member(0, ready=lease))
        wait_until(lambda lost=lease: agent.session.written and agent.session.state.lease not in (None, lost))
    watch.close()
    look()
    assert set(seen_with_members) == {20}


def test_an_agent_that_is_back_in_time_goes_on_with_its_lease_its_office_and_its_records(
    world: World, wait_until: Callable[..., None]
) -> None:
    first = world.agent(leads=False)
    office = led(first)
    first.session.set_member(member(1, ready=3))
    first.session.set_member(member(2))
    first.session.bury("w2")
    wait_until(lambda: first.session.written)
    before = world.store.list(world.keys.members).entries
    first.close(revoke=False)
    second = world.agent(leads=False, adopts=True, name="agent-0")
    assert {m.worker_id: m.dead for m in second.adopted} == {"w1": False, "w2": True}
    assert led(second) == office
    assert second.session.state.lease == first.session.state.lease
    second.session.set_member(member(1, ready=3))  # it attaches again, with nothing new to say
    wait_until(lambda: second.session.written)
    assert world.store.list(world.keys.members).entries == before
    second.session.set_member(replace(member(2), incarnation="again"))
    second.session.bury("w1")
    wait_until(lambda: second.session.written)
    assert record(world, "w1").dead
    assert not record(world, "w2").dead
    lease = second.session.state.lease
    assert lease is not None
    world.store.revoke(Lease(lease, 3))
    second.session.set_member(member(3))
    second.wait_for(LeaseGranted, lambda event: event.again)
    wait_until(lambda: second.session.written)
    assert record(world, "w1").dead


def test_nothing_is_adopted_of_another_node_or_under_a_lease_that_is_gone(world: World) -> None:
    lease = world.store.grant(60)
    key = world.keys.agent("agent-0")
    world.store.put(key, encode_agent(AgentRecord("agent-0", "host", 1, node="another node")), lease=lease)
    world.store.put(world.keys.member("w1"), encode_member(member(1)), lease=lease)
    agent = world.agent(leads=False, adopts=True)
    assert not agent.adopted
    assert agent.wait_for(LeaseGranted).lease != lease.id
    agent.close()
    world.store.put(key, encode_agent(AgentRecord("agent-1", "host", 1, node="node")))  # on no lease: nobody's
    assert not world.agent(leads=False, adopts=True).adopted


def test_an_earlier_lifes_lease_is_ended_with_all_that_hangs_on_it(
    world: World, wait_until: Callable[..., None]
) -> None:
    first = world.agent(leads=False)
    first.session.set_member(member(1))
    wait_until(lambda: first.session.written and first.told(Elected))
    first.close(revoke=False)
    later = Session(world.store, world.job, "agent-0", lambda _: None, TIMING)
    assert not later.revoke_earlier("another node")
    assert later.revoke_earlier("node")
    assert not world.store.list(world.keys.members).entries
    assert world.store.get(world.keys.leader) is None
    assert not later.revoke_earlier("node")
    assert not later.adopt("node")


# ---------------------------------------------------------------- accusations


def accusation_of(world: World, agent: str) -> Accusation | None:
    entry = world.store.get(world.keys.accusation(agent))
    return None if entry is None else decode_accusation(entry.value, entry.key)


def accuses_in(generation: int) -> Callable[[Accused], bool]:
    return lambda event: event.accusation.generation == generation


def publish(world: World, leader: Agent, generation: int) -> None:
    publisher = Publisher(world.store, world.keys, led(leader).revision, Rejected(logger), 5.0)
    publisher.load([])
    publisher.publish(Plan(generation, "no matter", WAITING))


def test_an_agent_that_lives_answers_at_once_and_is_told(world: World, wait_until: Callable[..., None]) -> None:
    accuser, accused = world.agent(leads=False), world.agent(leads=False)
    accuser.wait_for(LeaseGranted)
    accused.wait_for(LeaseGranted)
    answers = []
    deleted = threading.Event()

    def note(events: Any) -> None:
        if events[-1].entry is None:
            deleted.set()

    watch = world.store.watch(world.keys.accusation("agent-1"), lambda _: None, note)
    for attempt in range(5):
        deleted.clear()
        begun = time.monotonic()
        accuser.session.accuse("agent-1", attempt, f"reason {attempt}")
        assert deleted.wait(10)
        answers.append(time.monotonic() - begun)
        told = accused.wait_for(Accused, accuses_in(attempt)).accusation
        assert told == Accusation("agent-1", "agent-0", attempt, f"reason {attempt}")
        wait_until(lambda: not accuser.session._accuser._questions)
    watch.close()
    print(f"accuse -> answered: {1e3 * statistics.median(answers):.1f} ms (worst {1e3 * max(answers):.1f})")
    assert statistics.median(answers) < TIMING.answer / 2


def test_an_agent_that_does_not_answer_is_marked_when_its_time_is_over(
    world: World, wait_until: Callable[..., None]
) -> None:
    accuser = world.agent(leads=False)
    accuser.wait_for(LeaseGranted)
    begun = time.monotonic()
    accuser.session.accuse("ghost", 4, "its connections closed")
    wait_until(lambda: (found := accusation_of(world, "ghost")) is not None and found.unanswered)
    took = time.monotonic() - begun
    print(f"accuse -> marked: {took:.3f} s")
    assert took >= TIMING.answer
    assert accusation_of(world, "ghost") == Accusation("ghost", "agent-0", 4, "its connections closed", True)
    accuser.close()
    assert accusation_of(world, "ghost") is None  # it hangs on the accuser's lease


def test_nobody_accuses_himself_or_in_a_generation_that_is_over(world: World, wait_until: Callable[..., None]) -> None:
    agent = world.agent(leads=False)
    publish(world, agent, 1)
    seen(agent, 1)
    agent.session.accuse("agent-0", 1, "me")
    agent.session.accuse("ghost", 0, "late")
    agent.session.accuse("other", 1, "in time")
    wait_until(lambda: accusation_of(world, "other"))
    assert accusation_of(world, "agent-0") is None
    assert accusation_of(world, "ghost") is None


def test_a_newer_plan_takes_an_accusation_back_if_the_agent_has_left(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent(leads=False)
    agent.wait_for(LeaseGranted)
    agent.session.accuse("ghost", 1, "its connections closed")
    wait_until(lambda: accusation_of(world, "ghost"))
    publish(world, agent, 2)
    wait_until(lambda: accusation_of(world, "ghost") is None)


def test_who_is_silent_is_asked_on_through_newer_plans(world: World, wait_until: Callable[..., None]) -> None:
    """Two hosts die at once: the plan without the first one still counts on the second, and must not begin anew."""
    agent = world.agent(leads=False)
    agent.wait_for(LeaseGranted)
    lease = world.store.grant(60)
    dead = encode_agent(AgentRecord("dead", "host", 1, "127.0.0.1:1", "node"))
    world.store.put(world.keys.agent("dead"), dead, lease=lease)
    agent.session.accuse("dead", 1, "its connections closed")
    wait_until(lambda: accusation_of(world, "dead"))
    publish(world, agent, 2)
    seen(agent, 2)
    agent.session.accuse("dead", 2, "nobody is there")
    wait_until(lambda: (found := accusation_of(world, "dead")) is not None and found.unanswered)
    assert accusation_of(world, "dead") == Accusation("dead", "agent-0", 2, "nobody is there", True)
    world.store.revoke(lease)


def test_who_answers_is_asked_again_if_a_newer_generation_gives_reason_to(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent(leads=False)
    agent.wait_for(LeaseGranted)
    agent.session.accuse("slow", 1, "its connections closed")
    wait_until(lambda: accusation_of(world, "slow"))
    agent.session.accuse("slow", 2, "and again")
    world.store.delete(world.keys.accusation("slow"))  # its answer, to what stood there
    wait_until(lambda: (found := accusation_of(world, "slow")) is not None and found.generation == 2)


def test_an_accusation_whose_maker_is_gone_is_followed_up_by_the_next(
    world: World, wait_until: Callable[..., None]
) -> None:
    lease = world.store.grant(60)
    made = Accusation("ghost", "somebody who died", 3, "first")
    world.store.put(world.keys.accusation("ghost"), encode_accusation(made), lease=lease)
    agent = world.agent(leads=False)
    agent.session.accuse("ghost", 4, "second")
    wait_until(lambda: (found := accusation_of(world, "ghost")) is not None and found.unanswered)
    world.store.revoke(lease)
    assert accusation_of(world, "ghost") == Accusation("ghost", "agent-0", 4, "second", True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leader_that_does_not_answer_loses_its_office_unless_it_took_it_after_it_was_accused(
    world: World, when: str, wait_until: Callable[..., None]
) -> None:
    lease = world.store.grant(60)

    def take_office() -> None:
        world.store.put(world.keys.leader, b"ghost", lease=lease)

    if when == "after":
        made = Accusation("ghost", "somebody", 4, "it does not matter")
        world.store.put(world.keys.accusation("ghost"), encode_accusation(made), lease=world.store.grant(60))
    take_office()
    agent = world.agent(leads=False)
    wait_until(lambda: agent.session.leader == "ghost")
    agent.session.accuse("ghost", 4, "its connections closed")
    wait_until(lambda: (found := accusation_of(world, "ghost")) is not None and found.unanswered)
    wait_until(lambda: not agent.session._accuser._questions)
    if when == "before":
        led(agent)
        assert agent.session.leader == "agent-0"
    else:
        assert agent.session.leader == "ghost"
        assert world.store.keep_alive(lease) > 0


# ---------------------------------------------------------------- plans


def test_a_burst_of_members_makes_exactly_one_plan(world: World, wait_until: Callable[..., None]) -> None:
    agents = [world.agent()]
    led(agents[0])
    agents.append(world.agent())
    world.spec(3, pipe=2)
    for number in range(6):
        agents[number % 2].session.set_member(member(number, f"agent-{number % 2}", coordinate=number % 2))
    heads = [seen(agent, 1) for agent in agents]
    assert heads[0] == heads[1]
    assert (heads[0].generation, heads[0].state, heads[0].replicas) == (1, RUNNING, 3)
    assert heads[0].restore
    leader = agents[0].leader
    wait_until(lambda: leader.state and leader.state.waiting_for == "nothing has changed")
    assert [head.generation for head in agents[1].heads()] == [1]


def test_a_worker_finds_its_place_by_two_small_parts(world: World, wait_until: Callable[..., None]) -> None:
    agent = world.agent()
    for number in range(5):
        agent.session.set_member(member(number, coordinate=number % 2))
    wait_until(lambda: agent.session.written)
    world.spec(2, pipe=2)
    head = seen(agent, 1)
    views = {}
    for number in range(5):
        name = member(number).name
        agent.session.request_view(head, name, number % 2)
        views[number] = agent.wait_for(ViewFetched, is_for(name)).view
    placed = {n: v for n, v in views.items() if v.replica is not None}
    assert len(placed) == 4
    for number, view in placed.items():
        assert view.replica is not None
        assert view.replica.places[number % 2].name == member(number).name
        assert view.replica.slot in {peer.slot for peer in view.peers}
        assert member(number).name in {peer.place.name for peer in view.peers}
    (spare,) = views.keys() - placed.keys()
    assert views[spare] == View(head)


def test_a_loss_makes_an_urgent_plan_and_a_return_a_calm_one(world: World) -> None:
    one, other = world.agent(), world.agent()
    world.spec(3)
    for number in range(3):
        other.session.set_member(member(number, "agent-1"))
    first = seen(other, 1)
    other.session.remove_member("w1")
    second = seen(other, 2)
    assert (second.broken, second.replicas) == (first.generation, 2)
    assert "lost w1" in second.reason
    other.session.set_member(replace(member(1), incarnation="i1-again"))
    third = seen(other, 3)
    assert (third.broken, third.replicas) == (first.generation, 3)
    assert not third.restore
    assert seen(one, 3) == third
    assert [head.generation for head in other.heads()] == [1, 2, 3]


def test_the_successor_goes_on_where_the_leader_stopped(world: World) -> None:
    first = world.agent()
    led(first)
    second = world.agent()
    world.spec(3)
    first.session.set_member(member(0, "agent-0"))
    for number in (1, 2):
        second.session.set_member(member(number, "agent-1"))
    seen(second, 1)
    begun = time.monotonic()
    first.close()
    head = seen(second, 2)
    print(f"close of the leader -> its loss is planned: {(time.monotonic() - begun) * 1e3:.1f} ms")
    assert (head.generation, head.broken, head.replicas) == (2, 1, 2)
    assert "lost w0" in head.reason
    assert head.writer == led(second).revision


def test_a_deposed_leader_publishes_nothing(world: World) -> None:
    agent = world.agent()
    old = led(agent).revision
    world.spec(1)
    agent.session.set_member(member(0))
    seen(agent, 1)
    deposed = Publisher(world.store, world.keys, old, Rejected(logger), 5.0)
    deposed.load([])
    assert deposed.plan is not None
    world.store.delete(world.keys.leader)
    agent.wait_for(Elected, lambda event: event.revision > old)
    with pytest.raises(Deposed):
        deposed.publish(replace(deposed.plan, generation=2, reason="late"))
    with pytest.raises(Deposed):
        deposed.fence.write([Put(world.keys.assignment("w0"), encode_assignment(Assignment(Name("w0", "i0"), 0)))])
    entry = world.store.get(world.keys.head)
    assert entry is not None
    assert decode_head(entry.value).generation == 1
    assert not world.store.list(f"{world.keys.plans}2/").entries


def test_of_two_writers_of_a_generation_one_writes_nothing(world: World) -> None:
    revision = world.store.put(world.keys.leader, b"both")
    first, second = (Publisher(world.store, world.keys, revision, Rejected(logger), 5.0) for _ in range(2))
    first.load([])
    second.load([])
    first.publish(Plan(1, "first", WAITING))
    with pytest.raises(Deposed):
        second.publish(Plan(1, "second", WAITING))
    second.load([])
    assert second.plan == first.plan


def test_a_leader_that_is_not_sure_of_its_lease_does_not_publish(world: World, wait_until: Callable[..., None]) -> None:
    class Unsure:
        is_sure = False

        def sure(self, now: float) -> bool:
            return self.is_sure

        def settles(self, now: float) -> float:
            return 0.0

        def resign(self, rest: float) -> None:
            pytest.fail("it has not failed")

    tenure = Unsure()
    leader = Leader(world.store, world.job, tenure, patience=PATIENCE)
    leader.start()
    try:
        world.spec(1)
        world.store.put(world.keys.member("w0"), encode_member(member(0)), lease=world.store.grant(60))
        leader.lead(world.store.put(world.keys.leader, b"this one"))
        wait_until(lambda: leader.state and "lease" in leader.state.waiting_for)
        assert world.store.get(world.keys.head) is None
        tenure.is_sure = True
        wait_until(lambda: world.store.get(world.keys.head))
    finally:
        leader.close()


def test_fresh_members_are_told_once_what_to_build_and_only_as_many_as_are_needed(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent(patience=Patience(join_window=0.05))
    world.spec(2, pipe=2)
    for number in range(5):
        agent.session.set_member(member(number, coordinate=None, built=False))
    wait_until(lambda: len(agent.told(Assigned)) == 4)
    told = {event.worker_id: event.coordinate for event in agent.told(Assigned)}
    assert sorted(told.values()) == [0, 0, 1, 1]
    # what somebody else writes there later moves nobody: a coordinate never changes
    worker = next(iter(told))
    other = Assignment(Name(worker, f"i{worker[1:]}"), 1 - told[worker])
    world.store.put(world.keys.assignment(worker), encode_assignment(other))
    for number in range(5):
        if f"w{number}" in told:
            agent.session.set_member(member(number, coordinate=told[f"w{number}"]))
    head = seen(agent, 1)
    assert head.replicas == 2
    assert len(agent.told(Assigned)) == 4


def test_when_all_have_finished_the_plan_says_so_and_going_is_no_loss(world: World) -> None:
    agent = world.agent()
    world.spec(2)
    for number in range(2):
        agent.session.set_member(member(number))
    seen(agent, 1)
    for number in range(2):
        agent.session.set_member(member(number, finished=True))
    assert seen(agent, 2).state == FINISHED
    watcher = world.agent(patience=Patience(join_window=0.05))
    for number in range(2):
        agent.session.remove_member(f"w{number}")
    agent.close()
    led(watcher)
    watcher.session.set_member(member(7, "agent-1"))
    assert seen(watcher, 3).state == RUNNING


def test_a_member_that_fits_nowhere_is_asked_once_to_start_afresh(world: World) -> None:
    agent = world.agent(detect=0.2, patience=Patience(join_window=0.1))
    world.spec(2, pipe=2)
    for number, coordinate in enumerate([0, 1, 0, 0]):
        agent.session.set_member(member(number, coordinate=coordinate))
    seen(agent, 1)
    for number in range(2):
        agent.session.set_member(member(number, coordinate=number, ready=1))
    head = agent.wait_for(HeadSeen, lambda event: event.head.restart).head
    assert len(head.restart) == 1
    assert (head.generation, head.replicas, head.broken, head.restore) == (2, 1, 0, False)
    (asked,) = head.restart
    agent.session.remove_member(asked.worker_id)
    number = int(asked.worker_id[1:])
    fresh = replace(member(number, coordinate=None, built=False), incarnation="fresh")
    agent.session.set_member(fresh)
    told = agent.wait_for(Assigned, lambda event: event.incarnation == "fresh")
    assert told.coordinate == 1
    agent.session.set_member(replace(fresh, coordinate=1, built=True))
    assert agent.wait_for(HeadSeen, lambda event: event.head.replicas == 2).head.restart == ()


# ---------------------------------------------------------------- what others put into the store


GARBAGE = [b"", b"\xff\xfe", b"null", b"[]", b"{", b'{"worker_id": 3}', b'"' * 5000, b"[" * 100_000, b'{"axes": 5}']


def test_garbage_anywhere_is_skipped_and_counted(world: World, wait_until: Callable[..., None]) -> None:
    for number, garbage in enumerate(GARBAGE):
        world.store.put(f"{world.keys.members}bad{number}", garbage)
        world.store.put(f"{world.keys.assignments}bad{number}", garbage)
        world.store.put(f"{world.keys.plans}{number}/head", garbage)
        world.store.put(f"{world.keys.prefix}{number}", garbage)
    world.store.put(world.keys.member("thief"), encode_member(member(0)))
    world.store.put(world.keys.member("w77"), encode_member(member(77, coordinate=9)))
    agent = world.agent()
    led(agent)
    for garbage in GARBAGE:
        world.store.put(world.keys.spec, garbage)
        world.store.put(world.keys.head, garbage)
    world.spec(2)
    for number in range(2):
        agent.session.set_member(member(number))
    head = agent.wait_for(HeadSeen, lambda event: event.head.replicas == 2).head
    for garbage in GARBAGE:
        world.store.put(world.keys.assignment("w0"), garbage)
        world.store.put(world.keys.spec, garbage)
    other_axes = Spec(Axes(5), 1, 1)
    world.store.put(world.keys.spec, encode_spec(other_axes))
    agent.session.remove_member("w1")
    assert seen(agent, head.generation + 1).replicas == 1
    state = agent.leader.state
    assert state is not None
    assert state.rejected > len(GARBAGE)
    wait_until(lambda: agent.session.state.counters["rejected"] > 0)


@pytest.mark.parametrize("damage", [None, b"garbage"])
def test_a_head_that_is_damaged_or_deleted_is_put_back(
    world: World, damage: bytes | None, wait_until: Callable[..., None]
) -> None:
    agent = world.agent()
    world.spec(1)
    agent.session.set_member(member(0))
    seen(agent, 1)
    before = world.store.get(world.keys.head)
    assert before is not None

    def spoil() -> None:
        if damage is None:
            world.store.delete(world.keys.head)
        else:
            world.store.put(world.keys.head, damage)

    def stands() -> bool:
        entry = world.store.get(world.keys.head)
        return entry is not None and entry.value == before.value

    spoil()
    wait_until(stands)
    agent.leader.follow()  # nobody leads while it is spoiled again: the successor finds it in the history
    wait_until(lambda: agent.leader.state is None)
    spoil()
    agent.leader.lead(led(agent).revision)
    wait_until(stands)
    assert [head.generation for head in agent.heads()] == [1]


def test_a_plan_whose_parts_are_lost_is_followed_by_one_in_which_nobody_counts_as_current(
    world: World, wait_until: Callable[..., None]
) -> None:
    agent = world.agent()
    world.spec(2)
    for number in range(2):
        agent.session.set_member(member(number))
    seen(agent, 1)
    agent.leader.follow()
    wait_until(lambda: agent.leader.state is None)
    world.store.delete_prefix(world.keys.prefix + parts_prefix(1, led(agent).revision))
    agent.leader.close()
    agent.leader = Leader(world.store, world.job, agent.session, patience=PATIENCE)  # one that never knew the plan
    agent.leader.start()
    agent.leader.lead(led(agent).revision)
    head = seen(agent, 2)
    assert (head.generation, head.replicas, head.broken, head.restore) == (2, 2, 1, False)
    agent.session.request_view(head, member(0).name, 0)
    view = agent.wait_for(ViewFetched).view
    assert [peer.place.since for peer in view.peers] == [2, 2]


def test_no_number_that_a_member_has_seen_is_given_out_again(world: World) -> None:
    agent = world.agent()
    world.spec(1)
    agent.session.set_member(member(0, ready=41, left=41, pristine=False))
    assert seen(agent, 1).generation == 42


# ---------------------------------------------------------------- many parts, many generations


def large_plan(generation: int, replicas: int) -> Plan:
    def place(number: int) -> Place:
        return Place(Name(f"w{number}", f"i{number}"), "host", "127.0.0.1:5000", generation)

    rows = tuple(Replica(slot, generation, (place(2 * slot), place(2 * slot + 1))) for slot in range(replicas))
    return Plan(generation, "a large one", RUNNING, rows, placed=generation)


def test_a_large_plan_is_written_in_several_transactions_and_read_back_whole(world: World) -> None:
    revision = world.store.put(world.keys.leader, b"this one")
    publisher = Publisher(world.store, world.keys, revision, Rejected(logger), 5.0)
    publisher.load([])
    publisher.publish(large_plan(1, 3 * OPERATIONS))
    reader = Publisher(world.store, world.keys, revision, Rejected(logger), 5.0)
    reader.load([])
    assert reader.plan == publisher.plan == replace(large_plan(1, 3 * OPERATIONS), writer=revision)


def test_only_the_last_generations_are_kept(world: World) -> None:
    revision = world.store.put(world.keys.leader, b"this one")
    publisher = Publisher(world.store, world.keys, revision, Rejected(logger), 5.0)
    publisher.load([])
    for generation in range(1, KEPT + 6):
        publisher.publish(large_plan(generation, 1))
        if generation % 3 == 0:
            publisher.collect()
    publisher.collect()
    kept = {
        entry.key.removeprefix(world.keys.plans).split("/")[0] for entry in world.store.list(world.keys.plans).entries
    }
    assert sorted(map(int, kept)) == list(range(6, KEPT + 6))


# ---------------------------------------------------------------- a real etcd, and what befalls it


@pytest.fixture
def own_etcd() -> Iterator[EmbeddedEtcd]:
    """An etcd that a test may stop and freeze."""
    with EmbeddedEtcd() as server:
        yield server


@pytest.fixture
def small_etcd() -> Iterator[EmbeddedEtcd]:
    """An etcd that is soon full."""
    with EmbeddedEtcd(arguments=["--quota-backend-bytes=1000000"]) as server:
        yield server


@pytest.fixture
def fragile(own_etcd: EmbeddedEtcd) -> Iterator[World]:
    stores: list[Store] = []

    def open_store() -> Store:
        stores.append(EtcdStore(own_etcd.endpoint))
        return stores[-1]

    world = World(open_store)
    yield world
    world.close()
    for store in stores:
        store.close()


def running(world: World, agents: int = 3) -> list[Agent]:
    world.spec(agents)
    made = [world.agent() for _ in range(agents)]
    for number, agent in enumerate(made):
        agent.session.set_member(member(number, agent.agent_id))
    for agent in made:
        seen(agent, 1)
    return made


def etcd_pid(server: EmbeddedEtcd) -> int:
    pid = server.pid
    assert pid is not None
    return pid


def test_a_freeze_that_ends_all_leases_makes_no_plan(
    fragile: World, own_etcd: EmbeddedEtcd, wait_until: Callable[..., None]
) -> None:
    agents = running(fragile)
    pid = etcd_pid(own_etcd)
    os.kill(pid, signal.SIGSTOP)
    try:
        for agent in agents:
            agent.wait_for(StoreDown)
        led_by = next(agent for agent in agents if agent.told(Elected))
        led_by.wait_for(DeposedEvent)  # its lease may have ended
        ends = max(agent.session.lease_deadline for agent in agents)
        wait_until(lambda: time.monotonic() > ends + 0.5)  # by then all leases have ended
    finally:
        os.kill(pid, signal.SIGCONT)
    for number, agent in enumerate(agents):
        agent.wait_for(StoreUp)
        agent.wait_for(LeaseGranted, lambda event: event.again)
        agent.session.set_member(member(number, agent.agent_id, ready=1))
    deadline = time.monotonic() + 15
    while not all(agent.session.written for agent in agents) or not any(
        agent.leader.state and agent.leader.state.waiting_for == "nothing has changed" for agent in agents
    ):
        assert time.monotonic() < deadline, [agent.leader.state for agent in agents]
        time.sleep(0.01)
    assert [head.generation for agent in agents for head in agent.heads()] == [1, 1, 1]
    # and the job is alive: a loss is planned
    agents[2].session.remove_member("w2")
    assert "lost w2" in seen(agents[0], 2).reason


def test_an_etcd_that_is_killed_and_comes_back_changes_nothing(fragile: World, own_etcd: EmbeddedEtcd) -> None:
    agents = running(fragile)
    os.kill(etcd_pid(own_etcd), signal.SIGKILL)
    agents[0].wait_for(StoreDown)
    own_etcd.start()
    for number, agent in enumerate(agents):
        agent.session.set_member(member(number, agent.agent_id, ready=1))
    agents[0].wait_for(StoreUp)
    agents[2].session.remove_member("w2")
    head = seen(agents[0], 2)
    assert (head.generation, head.replicas) == (2, 2)
    assert head.reason == "lost w2"


def test_after_a_wipe_that_was_shorter_than_a_lease_everybody_is_back_at_once_and_nobody_counts_as_lost(
    wait_until: Callable[..., None],
) -> None:
    store = MemoryStore()
    world = World(lambda: store)
    agents = running(world)
    store.wipe()
    begun = time.monotonic()
    for agent in agents:
        agent.wait_for(LeaseGranted, lambda event: event.again)
    wait_until(lambda: all(agent.session.written for agent in agents))
    took = time.monotonic() - begun
    print(f"wiped -> all records are back: {took:.2f} s")
    assert took < TIMING.ttl / 3
    for number in range(3):
        assert record(world, f"w{number}") == member(number, f"agent-{number}")
    wait_until(lambda: any(agent.session.state.leading for agent in agents))
    leader = next(agent for agent in agents if agent.session.state.leading)
    now = time.monotonic()
    assert leader.session.settles(now) > now
    world.close()


def test_after_a_wipe_the_same_agent_leads_as_nobody_else_knows_who_sits_where(wait_until: Callable[..., None]) -> None:
    store = MemoryStore()
    world = World(lambda: store)
    agents = running(world)
    first = agents[0].session.state
    assert first.leading
    assert first.lease is not None
    store.revoke(Lease(first.lease, 3))  # so that another one leads, which is told of the wipe later than the first
    wait_until(lambda: any(agent.session.state.leading for agent in agents[1:]))
    leader = next(agent for agent in agents[1:] if agent.session.state.leading)
    wait_until(lambda: agents[0].session.state.leader == leader.agent_id and agents[0].session.written)
    terms = len(leader.told(Elected))
    store.wipe()
    leader.wait_for(Elected, lambda _: len(leader.told(Elected)) > terms)
    # one that led meanwhile, as a wiped store takes anybody, finds out a little later that it does not any more
    wait_until(lambda: [agent.agent_id for agent in agents if agent.session.state.leading] == [leader.agent_id])
    world.close()


def test_a_full_etcd_freezes_what_is_written_but_not_what_is_deleted_and_it_is_said_once(
    small_etcd: EmbeddedEtcd, wait_until: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    stores = [EtcdStore(small_etcd.endpoint) for _ in range(2)]
    opened = iter(stores)
    world = World(lambda: next(opened))
    try:
        agent = world.agent(leads=False)
        for number in range(2):
            agent.session.set_member(member(number))
        wait_until(lambda: agent.session.written)
        with pytest.raises(StoreRefused, match="database is full"):
            fill(world.store)
        agent.session.bury("w0")
        agent.session.remove_member("w1")
        wait_until(lambda: world.store.get(world.keys.member("w1")) is None)
        agent.session.set_member(member(2))
        lease = agent.session.state.lease
        assert lease is not None
        world.store.revoke(Lease(lease, 3))
        refused = time.monotonic() + 10 * TIMING.retry
        wait_until(lambda: time.monotonic() > refused and agent.told(LeaseEnded))
        make_room(small_etcd, world.store)
        wait_until(lambda: agent.session.written and agent.session.state.leading)
        assert record(world, "w0").dead
        assert record(world, "w2") == member(2)
    finally:
        world.close()
        for store in stores:
            store.close()
    said = [entry for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert len([entry for entry in said if entry.name.endswith("mirror")]) == 1
    assert len([entry for entry in said if entry.name.endswith("candidacy")]) == 1


def fill(store: Store) -> None:
    """Write until it is refused."""
    for number in range(100):
        store.put(f"/elsewhere/{number}", b"x" * 100_000)


def make_room(server: EmbeddedEtcd, store: Store) -> None:
    """What an operator does when etcd is full."""
    store.delete_prefix("/elsewhere/")
    host, _, port = server.endpoint.rpartition(":")
    client = etcd3.client(host=host, port=int(port))
    client.compact(store.list("").revision, physical=True)
    client.defragment()
    for alarm in list(client.list_alarms()):
        list(client.disarm_alarm(alarm.member_id))
    client.close()


def test_a_session_ends_within_seconds_though_the_store_is_frozen(fragile: World, own_etcd: EmbeddedEtcd) -> None:
    agents = running(fragile)
    pid = etcd_pid(own_etcd)
    os.kill(pid, signal.SIGSTOP)
    try:
        agents[0].session.remove_member("w0")
        agents[0].wait_for(StoreDown)
        begun = time.monotonic()
        agents[0].close()
        assert time.monotonic() - begun < 3 * TIMING.operation + 1
    finally:
        os.kill(pid, signal.SIGCONT)


def break_etcd(server: EmbeddedEtcd, agents: list[Agent], how: str, wait_until: Callable[..., None]) -> None:
    """Freeze it or kill it, and wait until it is missed; a freeze lasts until all leases have ended."""
    os.kill(etcd_pid(server), signal.SIGSTOP if how == "frozen" else signal.SIGKILL)
    for agent in agents:
        agent.wait_for(StoreDown)
    if how == "frozen":
        ends = max(agent.session.lease_deadline for agent in agents)
        wait_until(lambda: time.monotonic() > ends + 0.5)


def mend_etcd(server: EmbeddedEtcd, how: str) -> float:
    """Return when it was back (monotonic)."""
    if how == "frozen":
        os.kill(etcd_pid(server), signal.SIGCONT)
    else:
        server.start()
    return time.monotonic()


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_a_worker_that_dies_in_an_outage_is_planned_away_within_2_s_after_it_and_nobody_else_is(
    fragile: World, own_etcd: EmbeddedEtcd, how: str, wait_until: Callable[..., None]
) -> None:
    agents = running(fragile)
    try:
        break_etcd(own_etcd, agents, how, wait_until)
        agents[1].session.bury("w1")
    finally:
        back = mend_etcd(own_etcd, how)
    agents[0].wait_for(HeadSeen, is_of(2))
    took = agents[0].when(agents[0].wait_for(HeadSeen, is_of(2))) - back
    print(f"etcd was {how} and is back -> its loss is planned: {took:.2f} s")
    assert took < 2
    head = seen(agents[0], 2)
    assert (head.generation, head.replicas) == (2, 2)
    assert head.reason == "lost w1"
    wait_until(lambda: all(agent.session.written for agent in agents))
    agents[2].wait_for(HeadSeen, is_of(2))
    assert [head.generation for head in agents[2].heads()] == [1, 2]


@pytest.mark.parametrize("how", ["frozen", "killed"])
def test_an_agent_that_is_accused_right_after_an_outage_has_time_to_hear_the_store_again(
    fragile: World, own_etcd: EmbeddedEtcd, how: str, wait_until: Callable[..., None]
) -> None:
    agents = running(fragile)
    marks: list[Accusation] = []

    def note(events: Any) -> None:
        entries = [event.entry for event in events if event.entry is not None]
        marks.extend(decode_accusation(entry.value, entry.key) for entry in entries)

    watch = fragile.store.watch(fragile.keys.accusations, lambda _: None, note, prefix=True)
    try:
        break_etcd(own_etcd, agents, how, wait_until)
        for accused in ("agent-1", "agent-2", "ghost"):
            agents[0].session.accuse(accused, 1, "its connections closed")
    finally:
        back = mend_etcd(own_etcd, how)
    for agent in agents[1:]:
        agent.wait_for(Accused)
    wait_until(lambda: any(mark.unanswered for mark in marks))
    print(f"etcd was {how} and is back -> one that is gone is marked: {time.monotonic() - back:.2f} s")
    assert {mark.agent for mark in marks if mark.unanswered} == {"ghost"}
    watch.close()
    assert [head.generation for head in agents[0].heads()] == [1]


def test_from_a_loss_to_the_news_of_the_next_plan(etcd: EmbeddedEtcd) -> None:
    stores = [EtcdStore(etcd.endpoint) for _ in range(4)]
    opened = iter(stores)
    world = World(lambda: next(opened))
    try:
        agents = running(world)
        delays, views = [], []
        for attempt in range(20):
            generation = max(head.generation for head in agents[1].heads())
            begun = time.monotonic()
            agents[2].session.remove_member("w2")
            event = agents[1].wait_for(HeadSeen, is_of(generation + 1))
            delays.append(agents[1].when(event) - begun)
            asked = time.monotonic()
            agents[1].session.request_view(event.head, member(1).name, 0)
            view = agents[1].wait_for(ViewFetched, is_of(generation + 1))
            views.append(agents[1].when(view) - asked)
            agents[2].session.set_member(replace(member(2, "agent-2"), incarnation=f"again-{attempt}"))
            seen(agents[1], generation + 2)
        shown = [f"{1e3 * statistics.median(x):.1f} ms (worst {1e3 * max(x):.1f})" for x in (delays, views)]
        print(f"remove_member -> HeadSeen at another agent: {shown[0]}; request_view -> ViewFetched: {shown[1]}")
        assert statistics.median(delays) < 0.1
    finally:
        world.close()
        for store in stores:
            store.close()


# ---------------------------------------------------------------- several jobs, and what a generation leaves


def test_two_jobs_in_one_store_do_not_see_each_other(world: World, wait_until: Callable[..., None]) -> None:
    """Agents and workers of the same names; one job's name begins with the other's."""
    other = World(world._open_store)
    other.job, other.keys = f"{world.job}0", Keys(f"{world.job}0")
    try:
        for job in (world, other):
            job.spec(2)
            agent = job.agent()
            led(agent)
            for number in (1, 2):
                agent.session.set_member(member(number))
        heads = [seen(job.agents[0], 1) for job in (world, other)]
        assert [head.replicas for head in heads] == [2, 2]
        before = {entry.key: entry.mod_revision for entry in other.store.list(other.keys.prefix).entries}
        world.agents[0].session.bury("w1")
        seen(world.agents[0], 2)
        world.agents[0].session.note_gap(2, 0.25)

        def gaps() -> list[float | None]:
            return [record.gap for record in JobRecords(world.store, world.keys, Rejected(logger)).history()]

        wait_until(lambda: gaps() == [None, 0.25])
        world.agents[0].close()
        after = {entry.key: entry.mod_revision for entry in other.store.list(other.keys.prefix).entries}
        assert after == before
        assert other.agents[0].heads() == [heads[1]]
        assert jobs_in(world.store)[-2:] == [world.job, other.job]
    finally:
        other.close()

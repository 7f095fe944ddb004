"""What real workers tell their agent, which is the test: whom they saw go, what they are stuck at, who is late."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reknit.rendezvous.parts import Head, Peer, View, encode_view
from reknit.rendezvous.records import Name, Place, Replica, Version
from reknit.runtime.ipc import server
from reknit.runtime.ipc.server import PeerEvent, Server
from reknit.runtime.recovery.recovery import LATE_SECONDS
from reknit.runtime.settings import WorkerSettings

SCRIPT = Path(__file__).with_name("reporting_worker.py")
PATIENCE_S = 60.0
START_S = 110.0  # torch is imported
HANG = 3.0
CONNECT = 30.0  # on a busy machine, and for one that comes late
SHORT_CONNECT = 4.0  # where somebody does not come at all
SETTINGS = WorkerSettings(
    job="reports",
    pipe=1,
    model=1,
    max_replicas=4,
    pipe_backend="gloo",
    address="127.0.0.1",
    connect=CONNECT,
    keepalive_idle=1,
    keepalive_interval=1,
    keepalive_probes=2,
    user_timeout=2.5,
    events=False,
    hang=HANG,
)
Message = dict[str, Any]


class Worker:
    """One process, and all that it has said."""

    def __init__(self, worker_id: str, connect: float) -> None:
        self.worker_id, self.connect = worker_id, connect
        self.said: list[Message] = []
        self.peer: server.Peer | None = None
        self.pid = 0

    @property
    def alive(self) -> bool:
        return self.pid == 0 or Path(f"/proc/{self.pid}").exists()

    @property
    def attached(self) -> server.Peer:
        assert self.peer is not None
        return self.peer

    @property
    def name(self) -> Name:
        return Name(self.worker_id, self.attached.incarnation)

    def place(self, since: int) -> Place:
        return Place(self.name, "here", str(self.attached.hello["address"]), since)


class Agent:
    """The test's own agent, which is its leader, too."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "private" / "agent.sock"
        self.crew: list[Worker] = []
        self._inbox: queue.SimpleQueue[PeerEvent] = queue.SimpleQueue()
        self._everybody: dict[str, Worker] = {}
        self.generation = self._origin = 0
        self._since: dict[Name, int] = {}
        self.come()
        environment = {"REKNIT_SOCKET": str(self.path), "OMP_NUM_THREADS": "1", "REKNIT_LEASE_SECONDS": "60"}
        self._nursery = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def come(self) -> None:
        self._server = Server(self.path, self._inbox.put)
        self._server.start()

    def go_away(self) -> None:
        self._server.close()
        for worker in self.crew:
            worker.peer = None

    def wait_return(self, worker: Worker) -> None:
        self.wait(lambda: worker.peer, "the worker to come back")

    def workers(self, count: int, connect: float = CONNECT) -> list[Worker]:
        """So many that live, have built their model, and have `connect` seconds to make a group."""
        self.crew = [worker for worker in self.crew if worker.alive and worker.connect == connect]
        while len(self.crew) < count:
            worker = Worker(f"w{len(self._everybody)}", connect)
            self._everybody[worker.worker_id] = worker
            self.crew.append(worker)
            assert self._nursery.stdin is not None
            self._nursery.stdin.write(f"{worker.worker_id}\n")
            self._nursery.stdin.flush()
        self.wait(lambda: all(self.heard(worker, "built") for worker in self.crew), "the models", START_S)
        return self.crew[:count]

    def plan(self, *workers: Worker, broken: int | None = None, ghost: Place | None = None) -> int:
        """A generation of these; graceful without `broken`.  `ghost`: one more member, of which there is no process.

        As long as none of them has been in any, they begin with what their script has built.
        """
        self.generation += 1
        fresh = not any(self.heard(worker, "ready") for worker in workers)
        self._origin = self.generation if fresh else self._origin
        self._since = {worker.name: self._since.get(worker.name, self.generation) for worker in workers}
        places = [worker.place(self._since[worker.name]) for worker in workers]
        places += [ghost] if ghost is not None else []
        replicas = [Replica(slot, place.since, (place,)) for slot, place in enumerate(places)]
        peers = tuple(Peer(slot, place) for slot, place in enumerate(places))
        head = Head(
            self.generation,
            "the test",
            "running",
            broken or 0,
            Version(self.generation, 0) if fresh else None,
            fresh,
            self._origin,
            self.generation,
            len(places),
            1,
            "d",
        )
        for worker, replica in zip(workers, replicas, strict=False):
            self.say(worker, type="plan", view=encode_view(View(head, replica, peers)))
        return self.generation

    def train(self, *workers: Worker) -> int:
        """A generation in which all of these are making steps.  One that breaks, on a busy machine, is made anew."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < deadline, "no generation holds"
            generation = self.plan(*workers, broken=self.generation)
            self.wait(lambda: self._decided(workers), f"generation {self.generation}")
            if not self._broke(workers):
                break
        for worker in workers:
            self.wait_steps(worker, 3)
        return generation

    def _decided(self, workers: Sequence[Worker]) -> bool:
        ready = all(self.heard(worker, "ready", generation=self.generation) for worker in workers)
        return ready or self._broke(workers)

    def _broke(self, workers: Sequence[Worker]) -> bool:
        return any(self.heard(worker, "left", generation=self.generation) for worker in workers)

    def say(self, worker: Worker, **message: Any) -> None:
        self._server.send(worker.attached, message)

    @contextmanager
    def keeping(self, worker: Worker, where: str, what: str) -> Iterator[None]:
        """As long as this lasts the worker stays at that, when it comes there."""
        new, order = self.folder / "new", self.folder / f"{worker.worker_id}.{where}"
        new.write_text(what)
        new.rename(order)
        try:
            yield
        finally:
            order.unlink()

    def heard(self, worker: Worker, what: str, /, **fields: Any) -> list[Message]:
        """What a worker has said, in order."""
        return [m for m in worker.said if m["type"] == what and all(m.get(k) == v for k, v in fields.items())]

    def wait_pulse(self, worker: Worker, more_than: float, **fields: Any) -> Message:
        """The first pulse that tells of more than so many seconds."""

        def found() -> list[Message]:
            return [pulse for pulse in self.heard(worker, "pulse", **fields) if pulse["seconds"] > more_than]

        first: Message = self.wait(found, f"a pulse {fields}")[0]
        return first

    def steps(self, worker: Worker) -> int:
        return len(self.heard(worker, "event", event="committed"))

    def wait_steps(self, worker: Worker, more: int) -> None:
        enough = self.steps(worker) + more
        self.wait(lambda: self.steps(worker) >= enough, "steps")

    def wait(self, condition: Callable[[], Any], what: str, timeout: float = PATIENCE_S) -> Any:
        """Listen until the condition holds."""
        deadline = time.monotonic() + timeout
        while not (found := condition()):
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            try:
                self._take(self._inbox.get(timeout=0.1))
            except queue.Empty:
                continue
        return found

    def wait_message(self, worker: Worker, what: str, /, **fields: Any) -> Message:
        """The newest message of this kind, when there is one."""
        found: list[Message] = self.wait(lambda: self.heard(worker, what, **fields), f"{what} {fields}")
        return found[-1]

    def _take(self, item: PeerEvent) -> None:
        worker = self._everybody[item.peer.worker_id]
        if item.kind == "opened":
            known = "coordinate" in item.peer.hello
            worker.peer, worker.pid = item.peer, item.peer.pid
            if not known:
                self.say(
                    worker, type="assigned", coordinate=0, settings=replace(SETTINGS, connect=worker.connect).encode()
                )
        elif item.message:
            worker.said.append(dict(item.message))

    def end(self) -> None:
        os.killpg(self._nursery.pid, signal.SIGKILL)
        self._nursery.communicate()
        self._server.close()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    agent = Agent(tmp_path_factory.mktemp("reports"))
    yield agent
    agent.end()


def test_who_died_is_named_by_everybody(agent: Agent) -> None:
    first, second, dying = agent.workers(3)
    generation = agent.train(first, second, dying)
    os.kill(dying.pid, signal.SIGKILL)
    for worker in (first, second):
        left = agent.wait_message(worker, "left", generation=generation)
        assert list(dying.name) in left["gone"]
        assert left["absent"] == []


def test_who_lets_others_wait_is_told_from_those_who_wait(agent: Agent) -> None:
    first, second, busy = agent.workers(3)
    agent.train(first, second, busy)
    with agent.keeping(busy, "between", "sleep"):
        stuck = agent.wait_pulse(busy, 1.0, kind="busy", generation=agent.generation)
        assert (stuck["phase"], stuck["limit"]) == ("between attempts", HANG)
        for worker in (first, second):
            pulse = agent.wait_pulse(worker, 1.0, kind="waits", phase="reduce", generation=agent.generation)
            assert pulse["step"] in (stuck["step"], stuck["step"] + 1)
    agent.wait_steps(busy, 2)
    agent.wait_message(busy, "pulse", seconds=0.0, generation=agent.generation)  # it is over


def test_who_has_announced_a_long_phase_says_so(agent: Agent) -> None:
    first, second, evaluating = agent.workers(3)
    agent.train(first, second, evaluating)
    with agent.keeping(evaluating, "forward", "long"):
        pulse = agent.wait_message(evaluating, "pulse", kind="long", generation=agent.generation)
        assert pulse["phase"] == "evaluation"
    agent.wait_steps(evaluating, 2)


def test_who_comes_late_says_that_it_left_though_it_knows_of_a_newer_plan(agent: Agent) -> None:
    first, second, slow = agent.workers(3)
    generation = agent.train(first, second, slow)
    with agent.keeping(slow, "forward", "sleep"):
        known = agent.wait_pulse(slow, 0.3, kind="busy", generation=generation)["seconds"]
        newer = agent.plan(first, second, slow, broken=generation)
        agent.wait_pulse(slow, known + LATE_SECONDS + 1.0, kind="busy", generation=generation)
    agent.wait_message(slow, "left", generation=generation)
    agent.wait_message(first, "ready", generation=newer)
    assert not agent.heard(first, "left", generation=generation)


def test_who_does_not_come_is_absent_and_the_wait_goes_on_counting(agent: Agent) -> None:
    first, second = agent.workers(2, SHORT_CONNECT)
    agent.train(first, second)
    with socket.create_server(("127.0.0.1", 0)) as nowhere:
        address = f"127.0.0.1:{nowhere.getsockname()[1]}"
        ghost = Place(Name("ghost", "1"), "elsewhere", address, agent.generation + 1)
        generation = agent.plan(first, second, broken=agent.generation, ghost=ghost)
        for worker in (first, second):
            left = agent.wait_message(worker, "left", generation=generation)
            assert left["absent"] == [["ghost", "1"]]
            assert ["ghost", "1"] not in left["gone"]  # but perhaps the one that gave up first
    for worker in (first, second):
        agent.wait_pulse(worker, SHORT_CONNECT, phase="waiting for a plan", kind="waits", generation=generation)


def test_what_was_seen_outlives_an_agent_that_is_away(agent: Agent) -> None:
    first, second, dying = agent.workers(3)
    generation, name = agent.train(first, second, dying), dying.name
    agent.go_away()
    os.kill(dying.pid, signal.SIGKILL)
    time.sleep(0.2)  # they leave meanwhile; if they should leave later, the test only shows less
    agent.come()
    for worker in (first, second):
        left = agent.wait_message(worker, "left", generation=generation)
        assert list(name) in left["gone"]
    agent.go_away()
    agent.come()  # a new one, which has never heard of it
    for worker in (first, second):
        agent.wait_return(worker)
        assert list(name) in worker.attached.hello["gone"]
        assert worker.attached.hello["left"] == generation

"""Agent and worker over a real Unix socket: attaching, losing each other, and dying."""

import os
import queue
import signal
import socket
import stat
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reknit.runtime.ipc.link import Link
from reknit.runtime.ipc.messages import IpcError, MessageError, encode
from reknit.runtime.ipc.server import Peer, PeerEvent, Server

DEADLINE = 20.0

WORKER = """
import os, sys, time
from reknit.runtime.ipc.link import Link
blob = bytearray(int(sys.argv[2]))
for place in range(0, len(blob), 4096):
    blob[place] = 1
link = Link(sys.argv[1], {"worker_id": "big", "incarnation": str(os.getpid())}, print, print, lease_seconds=5)
link.start()
if len(sys.argv) > 3 and os.fork() == 0:
    link.report({"type": "child"}, important=True)  # must go nowhere
    time.sleep(60)
link.report({"type": "ready", "private": link.prompt_death}, important=True)
number = 0
while True:
    number += 1
    link.report({"type": "step", "step": number})
    print(number, flush=True)
    time.sleep(0.001)
"""


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < deadline, f"not within {DEADLINE} s: {what}"
        time.sleep(0.005)


class Agent:
    """A server and all that it told, in order."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.events: queue.Queue[tuple[float, PeerEvent]] = queue.Queue()
        self.messages: list[dict[str, Any]] = []
        self.hold: threading.Event | None = None  # while it is not set, the agent is stuck in its handler
        self.server = Server(path, self.handle, **options)
        self.server.start()

    def handle(self, event: PeerEvent) -> None:
        if self.hold is not None:
            self.hold.wait(DEADLINE)
        self.events.put((time.monotonic(), event))

    def next(self, kind: str, type_: str | None = None) -> tuple[float, PeerEvent]:
        """The next event of a kind; messages passed over are kept."""
        while True:
            at, event = self.events.get(timeout=DEADLINE)
            if event.kind == "message":
                self.messages.append(dict(event.message))
            if event.kind == kind and (type_ is None or event.message["type"] == type_):
                return at, event


class Worker:
    """A link in this process and what it received."""

    def __init__(self, path: Path, incarnation: str = "a", lease_seconds: float = 10.0) -> None:
        self.received: queue.Queue[tuple[float, dict[str, Any]]] = queue.Queue()
        self.gone = threading.Event()
        self.link = Link(
            path,
            {"worker_id": "w0", "incarnation": incarnation},
            lambda message: self.received.put((time.monotonic(), message)),
            self.gone.set,
            lease_seconds=lease_seconds,
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "socket" / "agent.sock"


@pytest.fixture
def agent(path: Path) -> Iterator[Agent]:
    agent = Agent(path)
    yield agent
    agent.server.close()


@pytest.fixture
def worker(path: Path) -> Iterator[Worker]:
    worker = Worker(path)
    yield worker
    worker.link.close()


def attach(agent: Agent, worker: Worker) -> Peer:
    worker.link.start(connect_seconds=DEADLINE)
    return agent.next("opened")[1].peer


def test_messages_go_both_ways(agent: Agent, worker: Worker) -> None:
    peer = attach(agent, worker)
    assert (peer.worker_id, peer.incarnation, peer.pid, peer.uid) == ("w0", "a", os.getpid(), os.geteuid())
    assert worker.link.report({"type": "phase", "phase": "forward"})
    assert agent.next("message")[1].message == {"type": "phase", "phase": "forward"}
    assert agent.server.send(peer, {"type": "plan", "generation": 3})
    assert worker.received.get(timeout=DEADLINE)[1] == {"type": "plan", "generation": 3}
    worker.link.close()
    assert agent.next("closed")[1].peer == peer
    assert not agent.server.send(peer, {"type": "plan"})


def test_order_is_kept_in_both_directions(agent: Agent, worker: Worker) -> None:
    peer = attach(agent, worker)
    for number in range(500):
        worker.link.report({"type": "step", "step": number}, important=True)
        agent.server.send(peer, {"type": "plan", "generation": number})
    assert [agent.next("message")[1].message["step"] for _ in range(500)] == list(range(500))
    assert [worker.received.get(timeout=DEADLINE)[1]["generation"] for _ in range(500)] == list(range(500))


def test_an_agents_message_arrives_within_half_a_millisecond(agent: Agent, worker: Worker) -> None:
    peer = attach(agent, worker)
    delays = []
    for _ in range(100):
        sent = time.monotonic()
        agent.server.send(peer, {"type": "plan"})
        delays.append(worker.received.get(timeout=DEADLINE)[0] - sent)
    print(f"agent to worker: median {statistics.median(delays) * 1e6:.0f} us, worst {max(delays) * 1e6:.0f} us")
    assert statistics.median(delays) < 0.0005


def test_the_socket_is_its_owners_alone(agent: Agent, path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused(agent: Agent, path: Path) -> None:
    path.parent.chmod(0o777)
    path.chmod(0o777)
    for folder in list(path.parents)[:-1]:
        folder.chmod(folder.stat().st_mode | 0o055)
    script = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
    script += "s.settimeout(20); sys.exit(0 if s.recv(1) == b'' else 1)"
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == 0
    assert agent.server.counters["refused"] == 1


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(IpcError, match="open to other users"):
        Server(folder / "agent.sock", print).start()


def test_paths_that_cannot_be_sockets(tmp_path: Path) -> None:
    with pytest.raises(IpcError, match="longer than the 107 bytes"):
        Server(tmp_path / ("x" * 120), print).start()
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    (folder / "file").write_text("precious")
    with pytest.raises(IpcError, match="is not a socket"):
        Server(folder / "file", print).start()
    assert (folder / "file").read_text() == "precious"


def test_a_second_agent_is_refused_and_a_dead_ones_socket_replaced(agent: Agent, path: Path) -> None:
    with pytest.raises(IpcError, match="another agent"):
        Server(path, print).start()
    agent.server.close()
    assert not path.exists()
    leftover = socket.socket(socket.AF_UNIX)
    leftover.bind(str(path))
    leftover.close()
    successor = Server(path, print)
    successor.start()
    successor.close()


@pytest.mark.parametrize(
    "said",
    [b"rubbish\n", b"\xff" * 2_000_000, b'{"type":"step"}\n', b"[" * 60_000 + b"\n",
     encode({"type": "hello", "channel": "lifeline", "worker_id": "w9", "incarnation": "a"}) + b'{"type":"x"}\n',
     encode({"type": "hello", "channel": "control", "worker_id": "w9", "incarnation": "a"}) + b"rubbish\n"],
)  # fmt: skip
def test_rubbish_ends_its_own_connection_only(agent: Agent, worker: Worker, path: Path, said: bytes) -> None:
    peer = attach(agent, worker)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(DEADLINE)
        stranger.connect(str(path))
        try:
            stranger.sendall(said)
            assert stranger.recv(1) == b""
        except ConnectionError:
            pass
    eventually(lambda: agent.server.counters["malformed"] == 1, "the rubbish is counted")
    assert agent.server.send(peer, {"type": "plan"})
    assert worker.received.get(timeout=DEADLINE)[1] == {"type": "plan"}
    assert agent.events.empty()


def test_a_connection_that_never_says_whose_it_is(path: Path) -> None:
    agent = Agent(path, hello_seconds=0.1)
    try:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(DEADLINE)
            stranger.connect(str(path))
            assert stranger.recv(1) == b""
        assert agent.server.counters["unnamed"] == 1
    finally:
        agent.server.close()


def test_a_worker_that_stops_reading_is_dropped_and_never_blocks_the_agent(path: Path) -> None:
    agent = Agent(path, outbound_limit=1 << 18)
    sockets = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    try:
        for sock, channel in zip(sockets, ("lifeline", "control"), strict=True):
            sock.connect(str(path))
            sock.sendall(encode({"type": "hello", "channel": channel, "worker_id": "w9", "incarnation": "a"}))
        peer = agent.next("opened")[1].peer
        began = time.monotonic()
        for _ in range(10_000):
            if not agent.server.send(peer, {"type": "plan", "filling": "x" * 10_000}):
                break
        else:
            pytest.fail("a worker that reads nothing was sent 100 MB")
        assert time.monotonic() - began < 2.0
        assert "unread" in agent.next("closed")[1].reason
        assert agent.server.counters["overflow"] == 1
    finally:
        for sock in sockets:
            sock.close()
        agent.server.close()


def test_a_slow_reader_gets_everything_below_the_limit(agent: Agent, path: Path) -> None:
    release = threading.Event()
    received: list[int] = []

    def slowly(message: dict[str, Any]) -> None:
        release.wait(DEADLINE)
        received.append(message["generation"])

    link = Link(path, {"worker_id": "w0", "incarnation": "a"}, slowly, print, lease_seconds=10)
    link.start()
    try:
        peer = agent.next("opened")[1].peer
        for number in range(60):
            assert agent.server.send(peer, {"type": "plan", "generation": number, "filling": "x" * 10_000})
        release.set()
        eventually(lambda: received == list(range(60)), "all messages arrive in order")
    finally:
        link.close()


def test_handlers_that_raise_harm_nobody(path: Path) -> None:
    seen: queue.Queue[str] = queue.Queue()

    def raising(event: PeerEvent) -> None:
        seen.put(event.kind)
        raise RuntimeError("a defective handler")

    def also_raising(message: dict[str, Any]) -> None:
        seen.put(message["type"])
        raise RuntimeError("a defective handler")

    server = Server(path, raising)
    server.start()
    link = Link(path, {"worker_id": "w0", "incarnation": "a"}, also_raising, print, lease_seconds=10)
    try:
        link.start()
        for number in range(3):
            link.report({"type": "step", "step": number}, important=True)
        assert [seen.get(timeout=DEADLINE) for _ in range(4)] == ["opened", "message", "message", "message"]
    finally:
        link.close()
        server.close()


def test_no_agent_is_a_clear_error(path: Path, worker: Worker) -> None:
    with pytest.raises(IpcError, match="no agent answered"):
        worker.link.start(connect_seconds=0.2)


def test_a_hello_that_cannot_be_sent_is_an_error_at_once(path: Path) -> None:
    with pytest.raises(MessageError):
        Link(path, {"worker_id": "w0", "incarnation": "a", "x": object()}, print, print, lease_seconds=1)


def test_an_agent_that_comes_back_gets_the_hello_and_what_was_important(
    agent: Agent, worker: Worker, path: Path
) -> None:
    attach(agent, worker)
    agent.server.close()
    eventually(lambda: not worker.link.attached, "the worker notices")
    worker.link.set_hello({"worker_id": "w0", "incarnation": "a", "step": 7})
    assert not worker.link.report({"type": "telemetry"})
    for number in range(3):
        worker.link.report({"type": "committed", "step": number}, important=True)
    successor = Agent(path)
    try:
        assert successor.next("opened")[1].peer.hello["step"] == 7
        assert [successor.next("message")[1].message["step"] for _ in range(3)] == [0, 1, 2]
        worker.link.report({"type": "committed", "step": 3})
        assert successor.next("message")[1].message["step"] == 3
        assert worker.link.dropped == 1
        assert not worker.gone.is_set()
    finally:
        successor.server.close()


def test_a_full_agent_costs_telemetry_but_nothing_important(agent: Agent, worker: Worker) -> None:
    release = threading.Event()
    attach(agent, worker)
    agent.hold = release
    slowest = 0.0
    important = 0
    for number in range(3000):
        began = time.monotonic()
        worker.link.report({"type": "step", "step": number, "filling": "x" * 300}, important=number % 30 == 0)
        important += number % 30 == 0
        slowest = max(slowest, time.monotonic() - began)
    assert worker.link.dropped > 0
    assert slowest < 1.0
    release.set()
    worker.link.report({"type": "last"}, important=True)
    agent.next("message", "last")
    steps = [message["step"] for message in agent.messages if message["type"] == "step"]
    assert steps == sorted(steps)
    assert [step for step in steps if step % 30 == 0] == list(range(0, 3000, 30))
    assert len(steps) + worker.link.dropped == 3000


def test_the_worker_gives_up_when_the_lease_must_have_ended(agent: Agent, path: Path) -> None:
    worker = Worker(path, lease_seconds=0.3)
    attach(agent, worker)
    lost = time.monotonic()
    agent.server.close()
    assert worker.gone.wait(DEADLINE)
    assert 0.3 <= time.monotonic() - lost < 2.0
    worker.link.close()


def test_how_long_the_agent_may_be_away_is_the_agents_to_say(path: Path) -> None:
    agent, worker = Agent(path, lease_seconds=0.3), Worker(path, lease_seconds=300.0)
    attach(agent, worker)
    lost = time.monotonic()
    agent.server.close()
    assert worker.gone.wait(DEADLINE)
    assert 0.3 <= time.monotonic() - lost < 2.0
    worker.link.close()


def test_a_dropped_worker_attaches_again(agent: Agent, worker: Worker) -> None:
    peer = attach(agent, worker)
    agent.server.drop(peer, "for the test")
    assert agent.next("closed")[1].reason == "for the test"
    again = agent.next("opened")[1].peer
    assert again.number != peer.number
    assert (again.worker_id, again.incarnation) == ("w0", "a")


def test_reports_are_cheap(agent: Agent, worker: Worker) -> None:
    attach(agent, worker)
    durations = []
    for number in range(300):
        began = time.perf_counter()
        worker.link.report({"type": "step", "step": number, "loss": 1.25})
        durations.append(time.perf_counter() - began)
    print(f"report: median {statistics.median(durations) * 1e6:.1f} us")
    assert statistics.median(durations) < 0.0005


def test_nothing_is_left_after_many_attachments(agent: Agent, path: Path) -> None:
    def counts() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def once(incarnation: int) -> None:
        worker = Worker(path, str(incarnation))
        attach(agent, worker)
        worker.link.close()
        agent.next("closed")

    once(0)
    before = counts()
    for incarnation in range(1, 30):
        once(incarnation)
    eventually(lambda: counts() == before, f"descriptors and threads are back at {before}, now {counts()}")


def start_worker(agent: Agent, size: int, *more: str) -> tuple[subprocess.Popen[str], Peer]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(agent.server.path), str(size), *more], stdout=subprocess.PIPE, text=True
    )
    assert agent.next("message", "ready")[1].message["private"] is True
    while True:
        event = agent.next("message", "step")[1]
        if event.message["step"] >= 5:
            return process, event.peer


def sockets_of(folder: str) -> set[str]:
    # The descriptor that lists the folder is gone when its link is read; os.path.realpath does not mind.
    targets = [os.path.basename(os.path.realpath(f"{folder}/{name}")) for name in os.listdir(folder)]
    return {target for target in targets if target.startswith("socket:")}


def test_the_death_of_a_big_process_is_known_before_its_memory_is_freed(agent: Agent) -> None:
    delays, reaped = [], []
    for _ in range(3):
        process, peer = start_worker(agent, 1 << 30)
        assert process.stdout is not None
        try:
            main_table = sockets_of(f"/proc/{process.pid}/fd")
            assert len(main_table) == 1, "the main table holds the control connection, and never the lifeline"
            tables = [
                sockets_of(f"/proc/{process.pid}/task/{task}/fd") for task in os.listdir(f"/proc/{process.pid}/task")
            ]
            assert sum(1 for table in tables if table and table.isdisjoint(main_table)) == 1
            killed = time.monotonic()
        finally:
            os.kill(process.pid, signal.SIGKILL)
        at, event = agent.next("closed")
        process.wait()
        reaped.append(time.monotonic() - killed)
        delays.append(at - killed)
        assert event.peer == peer
        # What it reported before it died was delivered first: nothing that it printed as done is missing.
        printed = int(process.stdout.read().split()[-1])
        process.stdout.close()
        told = max(message["step"] for message in agent.messages if message["type"] == "step")
        assert told >= printed
        agent.messages.clear()
    print(
        f"1 GB process: end of lifeline after {', '.join(f'{delay * 1000:.1f}' for delay in delays)} ms, "
        f"reaped after {', '.join(f'{delay * 1000:.1f}' for delay in reaped)} ms"
    )
    assert statistics.median(delays) < 0.05
    assert statistics.median(delays) < statistics.median(reaped)


def test_a_forked_child_neither_speaks_for_the_worker_nor_hides_its_death(agent: Agent) -> None:
    process, peer = start_worker(agent, 1 << 20, "fork")
    assert process.stdout is not None
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
    try:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert agent.next("closed")[1].peer == peer
        assert Path(f"/proc/{child}").exists()
        assert not [message for message in agent.messages if message["type"] == "child"]
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_where_a_thread_may_not_leave_the_table_the_link_works_all_the_same(
    agent: Agent, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reknit.runtime.ipc.lifeline.leave_descriptor_table", lambda keep: False)
    before = len(os.listdir("/proc/self/fd"))
    attach(agent, worker)
    assert not worker.link.prompt_death
    worker.link.close()
    agent.next("closed")
    eventually(lambda: len(os.listdir("/proc/self/fd")) == before, "all descriptors are closed")

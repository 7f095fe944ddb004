"""The communicator with real processes that die, stop, and never come."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reknit.runtime.communicator.communicator import Communicator, check_data_backend
from reknit.runtime.communicator.meeting import MeetingPoint
from reknit.runtime.errors import BackendRefused, CommunicatorError, Interrupted

WORKER = Path(__file__).with_name("communicator_worker.py")
PATIENCE_S = 60
# What may pass on a busy machine where milliseconds are meant; every timeout asked for is far above it.
AT_ONCE_S = 1.0
Answer = dict[str, Any]


class Worker:
    """A process of communicator_worker.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._unanswered = 0
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put({"error": "the process ended", "message": str(self._process.wait())})

    def tell(self, action: str, *, at_once: bool = False, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": action, "with": arguments, "at_once": at_once}) + "\n")
        self._process.stdin.flush()
        self._unanswered += 1

    def answer(self) -> Answer:
        try:
            answer = self._answers.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise AssertionError("the worker does not answer") from None
        self._unanswered -= "begun" not in answer
        return answer

    def ask(self, action: str, *, at_once: bool = False, **arguments: Any) -> Any:
        """Tell, wait for the answer, and insist that it is no error."""
        self.tell(action, at_once=at_once, **arguments)
        answer = self.answer()
        assert answer.get("done") == action, answer
        return answer["result"]

    def answers(self, count: int) -> tuple[Answer, Answer]:
        """Two answers that may come in either order: the one without an error, the one with."""
        both = [self.answer() for _ in range(count)]
        (good,) = [one for one in both if "error" not in one]
        (bad,) = [one for one in both if "error" in one]
        return good, bad

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def idle(self) -> bool:
        """Alive, and not left in the middle of something by a test that failed."""
        return self.alive and self._unanswered == 0

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Crew:
    """Workers that are kept from test to test; the dead are replaced."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []

    def workers(self, count: int) -> list[Worker]:
        for worker in [worker for worker in self._workers if not worker.idle]:
            worker.end()
            self._workers.remove(worker)
        fresh = [Worker() for _ in range(count - len(self._workers))]
        for worker in fresh:
            assert worker.answer() == {"begun": True}
        self._workers += fresh
        return self._workers[:count]

    def end(self) -> None:
        for worker in self._workers:
            worker.end()


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.end()


@pytest.fixture(scope="module")
def meeting() -> Iterator[MeetingPoint]:
    point = MeetingPoint()
    yield point
    point.close()


@pytest.fixture
def build(crew: Crew, meeting: MeetingPoint, request: pytest.FixtureRequest) -> Iterator[Callable[[int], list[Worker]]]:
    """Build a group called `g` … of so many workers, named after the test; closed again by those who live."""
    workers: list[Worker] = []

    def build(size: int) -> list[Worker]:
        workers[:] = crew.workers(size)
        connect(workers, meeting, group_name(request))
        return workers

    yield build
    for worker in workers:
        if worker.idle:
            worker.ask("close", name=group_name(request))


def group_name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return group_name(request)


def connect(workers: list[Worker], meeting: MeetingPoint, name: str) -> None:
    for rank, worker in enumerate(workers):
        worker.tell("connect", name=name, address=meeting.address, rank=rank, size=len(workers))
    for worker in workers:
        answer = worker.answer()
        assert answer.get("done") == "connect", answer


def eventually(condition: Callable[[], Any], within_s: float = 5) -> None:
    """Wait until the condition holds; it is asked again and again."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "the condition does not come true"
        time.sleep(0.005)


def looping(workers: list[Worker], action: str, name: str) -> None:
    """Have all do something that never ends, and return when all are at it."""
    for worker in workers:
        worker.tell(action, name=name)
    for worker in workers:
        assert worker.answer() == {"begun": True}


@pytest.mark.parametrize("staged", [False, True], ids=["direct", "staged"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_operation_gives_what_it_must(
    build: Callable[[int], list[Worker]], name: str, size: int, staged: bool
) -> None:
    workers = build(size)
    for worker in workers:
        worker.tell("collectives", name=name, stage_everything=staged)
    answers = [worker.answer() for worker in workers]
    assert [answer.get("result", answer) for answer in answers] == [[]] * size


def test_wrong_arguments_are_refused_and_the_group_lives_on(build: Callable[[int], list[Worker]], name: str) -> None:
    workers = build(2)
    for worker in workers:
        refused, calls = worker.ask("wrong_arguments", name=name)
        assert refused == calls
    for worker in workers:
        worker.tell("all_reduce", name=name)
    assert [worker.answer()["result"] for worker in workers] == [[2.0] * 4] * 2


def test_a_killed_peer_fails_everybody_and_is_named(build: Callable[[int], list[Worker]], name: str) -> None:
    workers = build(3)
    looping(workers, "all_reduce_until_it_fails", name)
    killed = time.monotonic()
    workers[2].signal(signal.SIGKILL)
    for worker in workers[:2]:
        answer = worker.answer()
        assert answer["error"] == "Interrupted"
        assert 2 in answer["peers"]
        assert answer["t"] - killed < AT_ONCE_S
    # The group is over: later calls do not even try.
    for worker in workers[:2]:
        worker.tell("all_reduce", name=name)
        answer = worker.answer()
        assert answer["error"] == "Interrupted"
        assert answer["seconds"] < 0.1
        assert 2 in worker.ask("peers_gone", name=name)


def test_a_stopped_peer_frees_nobody_until_the_interrupt_does(
    build: Callable[[int], list[Worker]], meeting: MeetingPoint, name: str
) -> None:
    workers = build(3)
    looping(workers, "all_reduce_until_it_fails", name)
    workers[2].signal(signal.SIGSTOP)
    try:
        for worker in workers[:2]:
            assert worker.ask("peers_gone", at_once=True, name=name) == []
        for worker in workers[:2]:
            worker.tell("interrupt", at_once=True, name=name)
        for worker in workers[:2]:
            told, failed = worker.answers(2)
            assert failed["error"] == "Interrupted"
            assert failed["t"] - told["t"] < AT_ONCE_S
        connect(workers[:2], meeting, f"{name}, the next generation")
        for worker in workers[:2]:
            worker.tell("all_reduce", name=f"{name}, the next generation")
        assert [worker.answer()["result"] for worker in workers[:2]] == [[2.0] * 4] * 2
        for worker in workers[:2]:
            worker.ask("close", name=f"{name}, the next generation")
    finally:
        workers[2].signal(signal.SIGCONT)
    assert workers[2].answer()["error"] == "Interrupted"


@pytest.mark.parametrize("action", ["wait_for_the_others", "wait_for_future"])
def test_one_interrupt_reaches_every_peer(build: Callable[[int], list[Worker]], name: str, action: str) -> None:
    workers = build(3)
    # The interrupter itself takes no part, so that the others' operations cannot end otherwise.
    looping(workers[1:], action, name)
    workers[0].tell("interrupt", name=name)
    told = workers[0].answer()
    for worker in workers[1:]:
        answer = worker.answer()
        assert answer["error"] == "Interrupted"
        assert answer["t"] - told["t"] < AT_ONCE_S


def test_closing_fails_what_is_under_way(build: Callable[[int], list[Worker]], name: str) -> None:
    assert build(2)[0].ask("pending_work", name=name) == 3


def test_an_interrupt_hits_no_other_group(crew: Crew, meeting: MeetingPoint, name: str) -> None:
    workers = crew.workers(2)
    names = [f"{name} {index}" for index in range(4)]
    for rank, worker in enumerate(workers):
        worker.tell("connect_all", names=names, address=meeting.address, rank=rank, size=2)
    for worker in workers:
        answer = worker.answer()
        assert answer.get("done") == "connect_all", answer
    for index, doomed in enumerate(names):
        workers[0].ask("interrupt", name=doomed)
        for worker in workers:
            worker.tell("all_reduce", name=doomed)
        assert [worker.answer()["error"] for worker in workers] == ["Interrupted"] * 2
        for other in names[index + 1 :]:
            for worker in workers:
                worker.tell("all_reduce", name=other)
            assert [worker.answer()["result"] for worker in workers] == [[2.0] * 4] * 2
    for worker in workers:
        for one in names:
            worker.ask("close", name=one)


def test_the_kernel_watches_the_connections(build: Callable[[int], list[Worker]], name: str) -> None:
    for worker in build(3):
        assert worker.ask("keepalive_options", name=name) == [[1, 1, 1, 2, 2500]] * 2


def settle(worker: Worker) -> Answer:
    """What the worker holds once all that it has dropped is really gone."""
    before: list[Answer] = [{}]

    def calm() -> bool:
        last, before[0] = before[0], worker.ask("resources")
        return last == before[0] and not worker.ask("listening_ports")

    eventually(calm)
    return before[0]


def test_a_missing_member_is_waited_for_until_cancelled(crew: Crew, meeting: MeetingPoint, name: str) -> None:
    workers = crew.workers(2)
    before = [settle(worker) for worker in workers]
    for rank, worker in enumerate(workers):
        worker.tell("connect", name=name, address=meeting.address, rank=rank, size=3, timeout_s=60)
    eventually(lambda: len(meeting.keys(name)) >= 4)
    for worker in workers:
        worker.tell("cancel", at_once=True, name=name)
    for worker in workers:
        told, failed = worker.answers(2)
        assert failed["error"] == "Interrupted"
        assert failed["t"] - told["t"] < AT_ONCE_S
    for worker, resources in zip(workers, before, strict=True):
        assert settle(worker) == resources
    # And the next build knows nothing of it.
    started = time.monotonic()
    connect(workers, meeting, f"{name}, again")
    assert time.monotonic() - started < 2 * AT_ONCE_S
    for worker in workers:
        worker.ask("close", name=f"{name}, again")


def test_a_member_that_gives_up_frees_and_tells_the_others(crew: Crew, meeting: MeetingPoint, name: str) -> None:
    workers = crew.workers(2)
    for rank, worker in enumerate(workers):
        worker.tell("connect", name=name, address=meeting.address, rank=rank, size=3, timeout_s=60)
    eventually(lambda: len(meeting.keys(name)) >= 4)
    workers[1].tell("cancel", at_once=True, name=name)
    assert workers[1].answers(2)[1]["error"] == "Interrupted"
    answer = workers[0].answer()
    assert answer["error"] == "Interrupted"
    assert answer["peers"] == [1]


def test_a_member_that_announces_itself_but_never_connects(crew: Crew, meeting: MeetingPoint, name: str) -> None:
    worker, stalled = crew.workers(2)
    before = settle(worker)
    # The higher address calls the lower one: so gloo waits here, where nothing can interrupt it.
    stalled.tell("announce_but_never_connect", name=name, address=meeting.address, rank=1, size=2, host="127.0.0.2")
    assert stalled.answer() == {"begun": True}
    worker.tell("connect", name=name, address=meeting.address, rank=0, size=2, timeout_s=60)
    eventually(lambda: len(meeting.keys(name)) >= 4)
    worker.tell("cancel", at_once=True, name=name)
    told, failed = worker.answers(2)
    assert failed["error"] == "Interrupted"
    assert failed["t"] - told["t"] < AT_ONCE_S
    # Thread, sockets and the listening socket are given back long before the 60 s.
    assert settle(worker) == before
    stalled.signal(signal.SIGKILL)
    eventually(lambda: not stalled.alive)


def test_who_does_not_come_in_time_is_named(meeting: MeetingPoint) -> None:
    with pytest.raises(Interrupted, match=r"not everybody came within 0\.2 s: rank 1 did not") as caught:
        Communicator.connect(meeting.address, "lonely", 0, 2, timeout_s=0.2, hostname="127.0.0.1")
    assert (caught.value.group, caught.value.peers, caught.value.absent) == ("lonely", (), (1,))


def test_who_is_cancelled_early_has_waited_for_nobody_in_vain(meeting: MeetingPoint) -> None:
    cancelled = threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    with pytest.raises(Interrupted) as caught:
        Communicator.connect(
            meeting.address, "early", 0, 2, timeout_s=60, hostname="127.0.0.1", cancelled=cancelled, host=0
        )
    assert caught.value.absent == ()


def test_a_host_of_the_meeting_that_does_not_answer_is_the_absent_one() -> None:
    """As a stopped one, or one behind a cut."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Interrupted) as caught:
        Communicator.connect(silent.getsockname(), "silent", 0, 3, timeout_s=0.4, hostname="127.0.0.1", host=2)
    assert (caught.value.peers, caught.value.absent) == ((), (2,))


def test_a_host_of_the_meeting_that_is_no_more_is_gone(meeting: MeetingPoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = reserved.getsockname()
    with pytest.raises(Interrupted) as caught:
        Communicator.connect(address, "dead", 0, 3, timeout_s=60, hostname="127.0.0.1", host=2)
    assert (caught.value.peers, caught.value.absent) == ((2,), ())


def test_a_member_to_which_no_way_leads_is_absent(crew: Crew, meeting: MeetingPoint, name: str) -> None:
    worker, cut_off, reachable = crew.workers(3)
    arguments: Answer = {"name": name, "address": meeting.address, "size": 3, "host": "127.0.0.2"}
    # Both are waited for, and gloo itself gets no further than to the first of them.
    cut_off.tell("announce_as_if_unreachable", rank=2, **arguments)
    reachable.tell("announce_but_never_connect", rank=1, **arguments)
    assert cut_off.answer() == reachable.answer() == {"begun": True}
    worker.tell("connect", name=name, address=meeting.address, rank=0, size=3, timeout_s=1)
    answer = worker.answer()
    assert (answer["error"], answer["peers"], answer["absent"]) == ("Interrupted", [], [2]), answer
    for stalled in (cut_off, reachable):
        stalled.signal(signal.SIGKILL)


def test_a_member_that_dies_while_gloo_connects_frees_the_others_at_once(
    crew: Crew, meeting: MeetingPoint, name: str
) -> None:
    first, second, dying = crew.workers(3)
    before = [settle(worker) for worker in (first, second)]
    dying.tell("announce_but_never_connect", name=name, address=meeting.address, rank=2, size=3, host="127.0.0.2")
    assert dying.answer() == {"begun": True}
    for rank, worker in enumerate((first, second)):
        worker.tell("connect", name=name, address=meeting.address, rank=rank, size=3, timeout_s=60)
    eventually(lambda: len(meeting.keys(name)) >= 6)
    died = time.monotonic()
    dying.signal(signal.SIGKILL)
    for worker in (first, second):
        answer = worker.answer()
        assert answer["error"] == "Interrupted"
        assert answer["peers"] in ([2], [0], [1])  # who gave up because of it has left, too
        assert answer["t"] - died < AT_ONCE_S
    for worker, resources in zip((first, second), before, strict=True):
        assert settle(worker) == resources


@pytest.mark.parametrize("connecting", [False, True], ids=["at the meeting", "in the middle of the mesh"])
def test_a_host_that_is_stopped_while_others_build_holds_nobody_who_is_told(
    crew: Crew, name: str, connecting: bool
) -> None:
    host, first, second = crew.workers(3)
    before = [settle(worker) for worker in (first, second)]
    address = host.ask("serve")
    if connecting:
        host.tell("announce_but_never_connect", name=name, address=address, rank=0, size=3, host="127.0.0.2")
        assert host.answer() == {"begun": True}
    arguments: Answer = {"name": name, "address": address, "size": 3, "timeout_s": 60, "host_rank": 0}
    for rank, worker in enumerate((first, second), start=1):
        worker.tell("connect", rank=rank, **arguments)
    eventually(lambda: len(host.ask("announced", at_once=True, name=name)) == 4 + 2 * connecting)
    host.signal(signal.SIGSTOP)
    try:
        for worker in (first, second):
            worker.tell("cancel", at_once=True, name=name)
        for worker in (first, second):
            told, failed = worker.answers(2)
            assert failed["error"] == "Interrupted"
            assert failed["t"] - told["t"] < AT_ONCE_S
        for worker, resources in zip((first, second), before, strict=True):
            assert settle(worker) == resources
    finally:
        host.signal(signal.SIGCONT)
    if connecting:
        host.signal(signal.SIGKILL)


def test_a_stopped_meeting_point_does_not_hold_the_caller(crew: Crew, name: str) -> None:
    worker, host = crew.workers(2)
    before = settle(worker)
    address = host.ask("serve")
    host.signal(signal.SIGSTOP)
    try:
        worker.tell("connect", name=name, address=address, rank=0, size=2, timeout_s=60)
        worker.tell("cancel", at_once=True, name=name)
        told, failed = worker.answers(2)
        assert failed["error"] == "Interrupted"
        assert failed["t"] - told["t"] < AT_ONCE_S
        assert settle(worker) == before
    finally:
        host.signal(signal.SIGCONT)


def test_a_meeting_point_that_dies_frees_the_caller(crew: Crew, name: str) -> None:
    worker, host = crew.workers(2)
    address = host.ask("serve")
    worker.tell("connect", name=name, address=address, rank=0, size=2, timeout_s=60)
    eventually(lambda: worker.ask("listening_ports", at_once=True))
    host.signal(signal.SIGKILL)
    answer = worker.answer()
    assert answer["error"] == "Interrupted"
    eventually(lambda: not host.alive)


def test_a_port_where_nobody_listens_fails_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        address = reserved.getsockname()
    started = time.monotonic()
    with pytest.raises(Interrupted, match="ConnectionRefusedError"):
        Communicator.connect(address, "nowhere", 0, 2, timeout_s=60, hostname="127.0.0.1")
    assert time.monotonic() - started < AT_ONCE_S


def test_a_group_of_one_opens_nothing_and_ends_like_any_other() -> None:
    before = len(os.listdir("/proc/self/fd"))
    alone = Communicator.connect(("203.0.113.1", 1), "alone", 0, 1, timeout_s=1, hostname="203.0.113.1")
    assert len(os.listdir("/proc/self/fd")) == before
    assert alone.peers_gone() == []
    alone.barrier()
    alone.close()
    alone.close()
    with pytest.raises(Interrupted, match="it was closed"):
        alone.barrier()


@pytest.mark.parametrize(("rank", "size"), [(0, 0), (-1, 2), (2, 2)])
def test_a_rank_that_does_not_exist_is_refused(rank: int, size: int) -> None:
    with pytest.raises(CommunicatorError, match="does not exist"):
        Communicator.connect(("127.0.0.1", 1), "wrong", rank, size, timeout_s=1, hostname="127.0.0.1")


def test_only_gloo_serves_the_data_axis() -> None:
    check_data_backend("gloo")
    check_data_backend("nccl", rebuilt=False)
    with pytest.raises(BackendRefused, match="nccl cannot be rebuilt in place"):
        check_data_backend("nccl")
    with pytest.raises(BackendRefused, match="'mpi'"):
        check_data_backend("mpi", rebuilt=False)

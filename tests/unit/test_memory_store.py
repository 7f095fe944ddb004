"""What only the store in memory does; what it shares with etcd is in the integration tests' store contract."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from reknit.rendezvous.errors import LeaseLost, StoreUnavailable
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import Event, Put, Snapshot


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Story:
    """What a watch was told, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_reset(self, snapshot: Snapshot) -> None:
        self.lines.append("reset " + ",".join(f"{e.key}={e.value.decode()}" for e in snapshot.entries))

    def on_events(self, events: Sequence[Event]) -> None:
        self.lines.append(" ".join(f"{e.key}={e.entry.value.decode()}" if e.entry else f"-{e.key}" for e in events))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def story() -> Story:
    return Story()


def test_neither_the_protocol_nor_this_store_loads_grpc() -> None:
    code = (
        "import sys, reknit.rendezvous.store.protocol\n"
        "import reknit.rendezvous.store.memory, reknit.rendezvous.store.endpoints\n"
        "print(sorted({'grpc', 'etcd3', 'google.protobuf', 'tenacity', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_callbacks_have_run_when_the_call_returns(store: MemoryStore, story: Story) -> None:
    store.put("/a", b"1")
    store.watch("/", story.on_reset, story.on_events, prefix=True)
    store.put("/b", b"2")
    store.transaction([], [Put("/c", b"3"), Put("/a", b"4")])
    store.delete_prefix("/")
    assert story.lines == ["reset /a=1", "/b=2", "/c=3 /a=4", "-/a -/b -/c"]


def test_what_a_callback_causes_comes_after_it_to_everybody_in_order(store: MemoryStore, story: Story) -> None:
    def echo(events: Sequence[Event]) -> None:
        if events[0].key == "/a":
            store.put("/echo", b"!")
            # Nobody has been told yet: not even we ourselves.
            assert story.lines[-1] != "/echo=!"

    store.watch("/", lambda snapshot: None, echo, prefix=True)
    store.watch("/", story.on_reset, story.on_events, prefix=True)
    store.put("/a", b"1")
    assert story.lines == ["reset ", "/a=1", "/echo=!"]


def test_leases_end_by_the_clock_and_in_its_order(store: MemoryStore, clock: Clock, story: Story) -> None:
    short, long = store.grant(3), store.grant(5)
    store.put("/long", b"", lease=long)
    store.put("/short/b", b"", lease=short)
    store.put("/short/a", b"", lease=short)
    store.watch("/", story.on_reset, story.on_events, prefix=True)
    clock.now = 2.9
    store.tick()
    assert len(story.lines) == 1
    assert store.keep_alive(long) == 5
    clock.now = 7.8
    store.tick()
    assert story.lines[1:] == ["-/short/a -/short/b"]
    clock.now = 8.0
    # Any operation notices too, and what it noticed is told even if it fails itself.
    with pytest.raises(LeaseLost):
        store.keep_alive(long)
    assert story.lines[2:] == ["-/long"]


def test_an_outage_freezes_everything_and_loses_nothing(store: MemoryStore, clock: Clock, story: Story) -> None:
    lease = store.grant(3)
    store.put("/a", b"", lease=lease)
    store.watch("/", story.on_reset, story.on_events, prefix=True)
    store.set_available(False)
    with pytest.raises(StoreUnavailable):
        store.get("/a")
    late = Story()
    store.watch("/", late.on_reset, late.on_events, prefix=True)
    clock.now = 100.0
    store.tick()
    assert late.lines == []
    store.set_available(True)
    assert late.lines == ["reset /a="]
    assert store.keep_alive(lease) == 3
    assert story.lines == ["reset /a="]


def test_a_wipe_resets_everybody(store: MemoryStore, story: Story) -> None:
    before = store.put("/a", b"1")
    cluster = store.list("").cluster_id
    store.watch("/", story.on_reset, story.on_events, prefix=True)
    store.wipe()
    assert store.put("/b", b"2") <= before
    assert store.list("").cluster_id != cluster
    assert story.lines == ["reset /a=1", "reset ", "/b=2"]


def test_a_callback_that_always_fails_does_not_go_on_for_ever(store: MemoryStore) -> None:
    told: list[object] = []

    def fail(what: object) -> None:
        told.append(what)
        raise RuntimeError("never")

    store.watch("/", fail, fail, prefix=True)
    store.put("/a", b"1")
    store.put("/b", b"2")
    assert len(told) == 3
    assert all(isinstance(what, Snapshot) for what in told)


def test_closing_waits_for_a_callback_that_runs_in_another_thread(store: MemoryStore) -> None:
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def linger(events: Sequence[Event]) -> None:
        entered.set()
        leave.wait(5)
        left.set()

    watch = store.watch("/a", lambda snapshot: None, linger)
    writer = threading.Thread(target=store.put, args=("/a", b"1"))
    writer.start()
    assert entered.wait(5)
    # Others are not held up by a callback that takes its time.
    store.put("/b", b"")
    threading.Timer(0.02, leave.set).start()
    watch.close()
    assert left.is_set()
    writer.join()


def test_many_threads_are_told_everything_in_order(store: MemoryStore) -> None:
    seen: list[int] = []
    store.watch("/", lambda snapshot: None, lambda events: seen.extend(event.revision for event in events), prefix=True)
    threads = [
        threading.Thread(target=lambda name=name: [store.put(f"/{name}", b"") for _ in range(100)]) for name in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == list(range(2, 402))

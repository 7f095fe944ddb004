"""What every store promises (rendezvous/store.py), asked of the one in memory and of a real etcd alike."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from reknit.rendezvous.errors import LeaseLost, StoreError, StoreRefused
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.store.memory import MemoryStore
from reknit.rendezvous.store.protocol import (
    MAX_OPERATIONS,
    Compare,
    Delete,
    Event,
    Lease,
    Operation,
    Put,
    Snapshot,
    Store,
    TransactionResult,
)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Backend:
    """A store, and how its leases are made to run out: on etcd just by waiting."""

    store: Store
    pass_time: Callable[[float], None]


@pytest.fixture(params=["memory", "etcd"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "memory":
        clock = Clock()
        memory = MemoryStore(clock)

        def pass_time(seconds: float) -> None:
            clock.now += seconds
            memory.tick()

        yield Backend(memory, pass_time)
        memory.close()
    else:
        server: EmbeddedEtcd = request.getfixturevalue("etcd")
        store = EtcdStore(server.endpoint)
        yield Backend(store, lambda seconds: None)
        store.close()


@pytest.fixture
def store(backend: Backend) -> Store:
    return backend.store


def test_an_absent_key_is_none(store: Store, prefix: str) -> None:
    assert store.get(prefix + "nothing") is None


def test_an_entry_tells_when_it_was_created_and_last_written(store: Store, prefix: str) -> None:
    first = store.put(prefix + "a", b"one")
    second = store.put(prefix + "a", b"\x00\xff")
    entry = store.get(prefix + "a")
    assert entry is not None
    assert (entry.key, entry.value, entry.lease) == (prefix + "a", b"\x00\xff", 0)
    assert (entry.create_revision, entry.mod_revision) == (first, second)
    assert second == first + 1


def test_a_key_deleted_and_written_again_is_a_new_one(store: Store, prefix: str) -> None:
    store.put(prefix + "a", b"one")
    assert store.delete(prefix + "a")
    assert not store.delete(prefix + "a")
    again = store.put(prefix + "a", b"two")
    entry = store.get(prefix + "a")
    assert entry is not None
    assert entry.create_revision == again


def test_a_list_is_sorted_and_keeps_to_its_prefix(store: Store, prefix: str) -> None:
    for name in ("b", "a/2", "a/1", "a", "ab"):
        store.put(prefix + name, name.encode())
    listed = store.list(prefix + "a/")
    assert [(entry.key, entry.value) for entry in listed.entries] == [
        (prefix + "a/1", b"a/1"),
        (prefix + "a/2", b"a/2"),
    ]
    last = store.put(prefix + "c", b"")
    assert store.list(prefix).revision == last
    assert [entry.key for entry in store.list(prefix + "a").entries] == [prefix + k for k in ("a", "a/1", "a/2", "ab")]
    assert {prefix + "a", prefix + "b"} <= {entry.key for entry in store.list("").entries}
    assert listed.cluster_id == store.list("").cluster_id != 0


def test_what_there_is_under_a_prefix_is_seen_step_by_step(store: Store, prefix: str) -> None:
    for name in ("gpt/a", "gpt/b", "gpt-2/a", "gpt+/x"):
        store.put(prefix + name, b"")
    found, after = [], ""
    while (key := store.first(prefix, after=after)) is not None:
        folder = key.removeprefix(prefix).partition("/")[0]
        found.append(folder)
        after = f"{prefix}{folder}0"  # what comes behind the slash
    assert found == ["gpt+", "gpt-2", "gpt"]
    assert store.first(prefix + "gpt/", after=prefix + "gpt/a") == prefix + "gpt/b"
    assert store.first(prefix + "gpt/", after=prefix + "gpt/b") is None
    assert store.first(prefix + "nothing") is None
    assert store.first(prefix, after=prefix + "h") is None


def test_a_prefix_is_deleted_at_one_revision(store: Store, prefix: str, recorder: Any) -> None:
    for name in ("x/1", "x/2", "y"):
        store.put(prefix + name, b"")
    store.watch(prefix, recorder.on_reset, recorder.on_events, prefix=True)
    recorder.wait()
    assert store.delete_prefix(prefix + "x/") == 2
    assert store.delete_prefix(prefix + "x/") == 0
    recorder.wait(events=2)
    assert [(event.key, event.entry) for event in recorder.events] == [(prefix + "x/1", None), (prefix + "x/2", None)]
    assert len({event.revision for event in recorder.events}) == 1
    assert [entry.key for entry in store.list(prefix).entries] == [prefix + "y"]


def test_of_two_who_create_a_key_one_wins(store: Store, prefix: str) -> None:
    key = prefix + "leader"
    won = store.transaction([Compare.absent(key)], [Put(key, b"me")])
    lost = store.transaction([Compare.absent(key)], [Put(key, b"you")])
    assert (won.succeeded, lost.succeeded) == (True, False)
    assert lost.revision == won.revision
    entry = store.get(key)
    assert entry is not None
    assert (entry.value, entry.create_revision) == (b"me", won.revision)


@pytest.mark.parametrize(
    "compare",
    [
        lambda key, first, second: Compare.mod_revision(key, second),
        lambda key, first, second: Compare.create_revision(key, first),
        lambda key, first, second: Compare.value(key, b"two"),
        lambda key, first, second: Compare.mod_revision(key + "absent", 0),
        lambda key, first, second: Compare.create_revision(key + "absent", 0),
    ],
)
def test_a_compare_that_holds(store: Store, prefix: str, compare: Callable[[str, int, int], Compare]) -> None:
    key = prefix + "a"
    first, second = store.put(key, b"one"), store.put(key, b"two")
    assert store.transaction([compare(key, first, second)], [Put(key, b"three")]).succeeded


@pytest.mark.parametrize(
    "compare",
    [
        lambda key, first, second: Compare.mod_revision(key, first),
        lambda key, first, second: Compare.create_revision(key, second),
        lambda key, first, second: Compare.value(key, b"one"),
        lambda key, first, second: Compare.value(key + "absent", b""),
        lambda key, first, second: Compare.absent(key),
    ],
)
def test_a_compare_that_does_not_hold(store: Store, prefix: str, compare: Callable[[str, int, int], Compare]) -> None:
    key = prefix + "a"
    first, second = store.put(key, b"one"), store.put(key, b"two")
    holds = Compare.mod_revision(key, second)
    assert not store.transaction([holds, compare(key, first, second)], [Put(key, b"three")]).succeeded
    entry = store.get(key)
    assert entry is not None
    assert entry.value == b"two"


def test_a_transaction_happens_at_one_revision(store: Store, prefix: str, recorder: Any) -> None:
    store.put(prefix + "old/1", b"")
    store.put(prefix + "old/2", b"")
    store.watch(prefix, recorder.on_reset, recorder.on_events, prefix=True)
    recorder.wait()
    operations: list[Operation] = [
        Put(prefix + "b", b"1"),
        Delete(prefix + "old/", prefix=True),
        Put(prefix + "a", b"2"),
    ]
    result = store.transaction([], operations)
    recorder.wait(events=4)
    assert result.succeeded
    assert {event.revision for event in recorder.events} == {result.revision}
    assert len(recorder.batches) == 1
    assert recorder.state == {prefix + "a": b"2", prefix + "b": b"1"}


def test_a_transaction_that_changes_nothing_makes_no_revision(store: Store, prefix: str) -> None:
    revision = store.put(prefix + "a", b"")
    assert store.transaction([Compare.value(prefix + "a", b"")], []) == TransactionResult(True, revision)
    assert store.transaction([], [Delete(prefix + "nothing")]) == TransactionResult(True, revision)


def test_what_is_no_transaction_is_refused(store: Store, prefix: str) -> None:
    many: list[Operation] = [Put(f"{prefix}{number}", b"") for number in range(MAX_OPERATIONS)]
    assert store.transaction([], many).succeeded
    bad_ones: list[list[Operation]] = [
        [*many, Put(prefix + "more", b"")],
        [Put(prefix + "a", b"1"), Put(prefix + "a", b"2")],
        [Put(prefix + "a", b"1"), Delete(prefix + "a")],
        [Put(prefix + "a", b"1"), Delete(prefix, prefix=True)],
        [Put("", b"1")],
    ]
    for bad in bad_ones:
        with pytest.raises(StoreRefused):
            store.transaction([], bad)
    with pytest.raises(StoreRefused):
        store.get("")
    assert store.get(prefix + "a") is None


def test_counting_by_compare_and_swap_loses_nothing(store: Store, prefix: str) -> None:
    key = prefix + "counter"
    store.put(key, b"0")

    def count() -> None:
        for _ in range(20):
            while True:
                entry = store.get(key)
                assert entry is not None
                operations = [Put(key, str(int(entry.value) + 1).encode())]
                if store.transaction([Compare.mod_revision(key, entry.mod_revision)], operations).succeeded:
                    break

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entry = store.get(key)
    assert entry is not None
    assert entry.value == b"80"


def test_a_revoked_lease_takes_its_keys_along(store: Store, prefix: str, recorder: Any) -> None:
    lease = store.grant(30)
    assert lease.ttl >= 30
    for name in ("b", "a", "freed"):
        store.put(prefix + name, b"", lease=lease)
    store.put(prefix + "freed", b"")
    entry = store.get(prefix + "a")
    assert entry is not None
    assert entry.lease == lease.id
    store.watch(prefix, recorder.on_reset, recorder.on_events, prefix=True)
    recorder.wait()
    assert store.keep_alive(lease) == lease.ttl
    store.revoke(lease)
    recorder.wait(events=2)
    assert [event.key for event in recorder.events] == [prefix + "a", prefix + "b"]
    assert len({event.revision for event in recorder.events}) == 1
    assert [entry.key for entry in store.list(prefix).entries] == [prefix + "freed"]


def test_a_lease_that_is_gone_is_lost(store: Store, prefix: str) -> None:
    lease = store.grant(30)
    store.revoke(lease)
    store.revoke(lease)
    with pytest.raises(LeaseLost):
        store.keep_alive(lease)
    with pytest.raises(LeaseLost):
        store.put(prefix + "a", b"", lease=lease)
    with pytest.raises(LeaseLost):
        store.transaction([], [Put(prefix + "b", b""), Put(prefix + "c", b"", lease)])
    with pytest.raises(LeaseLost):
        store.keep_alive(Lease(id=4711, ttl=5))
    assert store.list(prefix).entries == ()


def test_a_lease_that_nobody_renews_runs_out(backend: Backend, prefix: str, recorder: Any) -> None:
    lease = backend.store.grant(0.5)
    assert lease.ttl <= 3
    backend.store.put(prefix + "a", b"", lease=lease)
    backend.store.watch(prefix, recorder.on_reset, recorder.on_events, prefix=True)
    backend.pass_time(lease.ttl)
    recorder.wait(events=1, timeout=lease.ttl + 5)
    assert recorder.events[0].entry is None
    with pytest.raises(LeaseLost):
        backend.store.keep_alive(lease)


def test_a_lease_tells_how_long_it_has_yet_without_being_renewed(
    backend: Backend, wait_until: Callable[..., None]
) -> None:
    lease = backend.store.grant(30)
    assert backend.store.time_to_live(lease) in (29, 30)
    backend.pass_time(1.5)
    wait_until(lambda: (backend.store.time_to_live(lease) or 0) <= 28)
    backend.store.keep_alive(lease)
    assert backend.store.time_to_live(lease) in (29, 30)
    backend.store.revoke(lease)
    assert backend.store.time_to_live(lease) is None


@pytest.mark.parametrize("asked", [0, 0.1, 7.2])
def test_a_lease_has_whole_seconds_and_no_less_than_asked(store: Store, asked: float) -> None:
    lease = store.grant(asked)
    assert lease.ttl == max(2, math.ceil(asked))
    store.revoke(lease)


def test_a_watch_starts_with_the_state_and_goes_on_from_there(store: Store, prefix: str, recorder: Any) -> None:
    before = store.put(prefix + "a", b"1")
    store.watch(prefix, recorder.on_reset, recorder.on_events, prefix=True)
    recorder.wait()
    assert recorder.resets[0].revision == before
    assert recorder.state == {prefix + "a": b"1"}
    second = store.put(prefix + "b", b"2")
    third = store.put(prefix + "a", b"3")
    store.delete(prefix + "b")
    recorder.wait(events=3)
    assert [(event.key, event.revision) for event in recorder.events] == [
        (prefix + "b", second),
        (prefix + "a", third),
        (prefix + "b", third + 1),
    ]
    changed = recorder.events[1].entry
    assert (changed.value, changed.create_revision, changed.mod_revision) == (b"3", before, third)
    assert recorder.events[2].entry is None
    assert len(recorder.resets) == 1


def test_a_watch_of_one_key_sees_only_that(store: Store, prefix: str, recorder: Any) -> None:
    store.put(prefix + "plan/2", b"")
    store.watch(prefix + "plan", recorder.on_reset, recorder.on_events)
    recorder.wait()
    assert recorder.resets[0].entries == ()
    store.put(prefix + "plan/1", b"")
    store.put(prefix + "pla", b"")
    store.put(prefix + "plan", b"yes")
    recorder.wait(events=1)
    assert [event.key for event in recorder.events] == [prefix + "plan"]


def test_watches_begun_during_writes_miss_nothing(store: Store, prefix: str, make_recorder: Any) -> None:
    recorders = [make_recorder() for _ in range(5)]
    for number in range(100):
        if number % 20 == 10:
            store.watch(prefix, recorders[number // 20].on_reset, recorders[number // 20].on_events, prefix=True)
        store.put(f"{prefix}{number % 7}", str(number).encode())
    final = {entry.key: entry.value for entry in store.list(prefix).entries}
    last = store.put(prefix + "end", b"")
    for recorder in recorders:
        recorder.wait()
        recorder.wait(events=last - recorder.resets[0].revision)
        assert recorder.state == {**final, prefix + "end": b""}
        seen = [event.revision for event in recorder.events]
        assert seen == list(range(recorder.resets[0].revision + 1, last + 1))


def test_a_closed_watch_is_silent(store: Store, prefix: str, make_recorder: Any) -> None:
    closed, other = make_recorder(), make_recorder()
    watch = store.watch(prefix, closed.on_reset, closed.on_events, prefix=True)
    store.watch(prefix, other.on_reset, other.on_events, prefix=True)
    closed.wait()
    other.wait()
    watch.close()
    watch.close()
    store.put(prefix + "a", b"")
    other.wait(events=1)
    assert closed.events == []


def test_a_callback_may_use_the_store_and_close_its_watch(store: Store, prefix: str, recorder: Any) -> None:
    watches: list[Any] = []
    begun = threading.Event()

    def answer(events: Sequence[Event]) -> None:
        begun.wait(5)
        for event in events:
            if event.key == prefix + "question":
                store.put(prefix + "answer", b"42")
                watches[0].close()

    store.watch(prefix + "answer", recorder.on_reset, recorder.on_events)
    ready = threading.Event()
    watches.append(store.watch(prefix, lambda snapshot: ready.set(), answer, prefix=True))
    begun.set()
    assert ready.wait(10)
    recorder.wait()
    store.put(prefix + "question", b"?")
    recorder.wait(events=1)
    store.put(prefix + "question", b"again?")
    assert store.get(prefix + "answer") == recorder.events[0].entry


def test_after_a_callback_raised_it_is_told_anew(
    store: Store, prefix: str, recorder: Any, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[Event] = []

    def fail_once(events: Sequence[Event]) -> None:
        if not refused:
            refused.extend(events)
            raise RuntimeError("cannot digest this")
        recorder.on_events(events)

    store.watch(prefix, recorder.on_reset, fail_once, prefix=True)
    recorder.wait()
    store.put(prefix + "a", b"1")
    recorder.wait(resets=2)
    assert recorder.state == {prefix + "a": b"1"}
    store.put(prefix + "b", b"2")
    recorder.wait(events=1, resets=2)
    assert recorder.state == {prefix + "a": b"1", prefix + "b": b"2"}
    assert "cannot digest this" in caplog.text


def test_after_a_failed_reset_another_comes(store: Store, prefix: str, recorder: Any) -> None:
    failures: list[Snapshot] = []

    def fail_once(snapshot: Snapshot) -> None:
        if not failures:
            failures.append(snapshot)
            raise RuntimeError("not yet")
        recorder.on_reset(snapshot)

    store.put(prefix + "a", b"1")
    store.watch(prefix, fail_once, recorder.on_events, prefix=True)
    store.put(prefix + "b", b"2")
    recorder.wait()
    # Whether the second write was in the second snapshot or came after it is a matter of time on etcd.
    if prefix + "b" not in recorder.state:
        recorder.wait(events=1)
    assert recorder.state == {prefix + "a": b"1", prefix + "b": b"2"}
    assert failures


def test_a_closed_store_says_so(backend: Backend, prefix: str, recorder: Any) -> None:
    store = backend.store
    store.connect()
    store.watch(prefix, recorder.on_reset, recorder.on_events)
    store.close()
    store.close()
    for use in (lambda: store.get(prefix), lambda: store.put(prefix, b""), lambda: store.grant(3), store.connect):
        with pytest.raises(StoreError, match="closed"):
            use()
    with pytest.raises(StoreError, match="closed"):
        store.watch(prefix, recorder.on_reset, recorder.on_events)


def _random_step(chance: random.Random, prefix: str, revisions: list[int]) -> tuple[list[Compare], list[Operation]]:
    """Return a transaction on few keys, so that they meet; revisions are places in a list, to compare two stores."""
    names = [f"{prefix}{name}" for name in ("a", "a/1", "a/2", "b")]
    compares: list[Compare] = []
    for _ in range(chance.randrange(2)):
        key, revision = chance.choice(names), chance.choice(revisions)
        make = (Compare.mod_revision, Compare.create_revision)[chance.randrange(2)]
        compares.append(chance.choice([make(key, revision), Compare.absent(key), Compare.value(key, b"1")]))
    operations: list[Operation] = []
    for key in chance.sample(names, chance.randrange(1, 4)):
        choice = chance.random()
        operation = Put(key, str(chance.randrange(3)).encode()) if choice < 0.6 else Delete(key, prefix=choice > 0.85)
        operations.append(operation)
    return compares, operations


def test_the_store_in_memory_behaves_as_etcd_does(etcd: EmbeddedEtcd, make_recorder: Any) -> None:
    """The same random transactions on both: same outcomes, entries and events, at revisions that correspond."""
    told = []
    for store in (MemoryStore(), EtcdStore(etcd.endpoint)):
        chance, recorder = random.Random(7), make_recorder()
        # Away from the other tests' keys, and with their own first revision as zero.
        base = store.put("/same/start", b"")
        story: list[object] = []
        revisions = [0, base]
        store.watch("/same/", recorder.on_reset, recorder.on_events, prefix=True)
        recorder.wait()
        for _ in range(300):
            compares, operations = _random_step(chance, "/same/", revisions)
            try:
                result = store.transaction(compares, operations)
                story.append((result.succeeded, result.revision - base))
                revisions.append(result.revision)
            except StoreRefused:
                story.append("refused")
            story.extend(
                (entry.key, entry.value, entry.mod_revision - base, entry.create_revision - base)
                for entry in store.list("/same/").entries
            )
        recorder.wait(events=1)
        last = store.put("/same/end", b"") - base
        _wait_for_revision(recorder, base + last)
        events = [(e.key, e.entry.value if e.entry else None, e.revision - base) for e in recorder.events]
        told.append((story, last, sorted(events, key=lambda event: (event[2], event[0]))))
        store.delete_prefix("/same/")
        store.close()
    memory, real = told
    assert "refused" in real[0]
    assert memory[0] == real[0]
    assert memory[1:] == real[1:]


def _wait_for_revision(recorder: Any, revision: int) -> None:
    while recorder.events[-1].revision < revision:
        recorder.wait(events=len(recorder.events) + 1)

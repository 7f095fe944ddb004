"""What the integration tests share: one etcd per test session, waiting on conditions, and what a watch has said."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.store.protocol import Event, Snapshot

_prefixes = itertools.count()


@pytest.fixture(scope="session")
def etcd() -> Iterator[EmbeddedEtcd]:
    """A running etcd that all tests of the session share: keep to your own prefix, and do not stop it."""
    with EmbeddedEtcd() as server:
        yield server


@pytest.fixture
def etcd_store(etcd: EmbeddedEtcd) -> Iterator[EtcdStore]:
    """A store on the session's etcd, closed after the test."""
    store = EtcdStore(etcd.endpoint)
    yield store
    store.close()


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test of the session uses, with a slash at its end."""
    return f"/test-{next(_prefixes)}/"


def _wait_until(condition: Callable[[], object], timeout: float = 10.0, what: str = "") -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout:g} s in vain for {what or 'a condition'}")
        time.sleep(0.002)


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Return wait_until(condition, timeout=10.0, what=""), which fails the test when the time is over."""
    return _wait_until


class Recorder:
    """What a watch has said so far: give `on_reset` and `on_events` to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.resets: list[Snapshot] = []
        self.batches: list[Sequence[Event]] = []
        self.state: dict[str, bytes] = {}

    def on_reset(self, snapshot: Snapshot) -> None:
        with self._lock:
            self.state = {entry.key: entry.value for entry in snapshot.entries}
            self.resets.append(snapshot)

    def on_events(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                if event.entry is None:
                    self.state.pop(event.key, None)
                else:
                    self.state[event.key] = event.entry.value
            self.batches.append(events)

    @property
    def events(self) -> list[Event]:
        with self._lock:
            return [event for batch in self.batches for event in batch]

    def wait(self, events: int = 0, resets: int = 1, timeout: float = 10.0) -> None:
        """Wait until at least so many have come."""
        what = f"{events} events and {resets} resets"
        _wait_until(lambda: len(self.events) >= events and len(self.resets) >= resets, timeout, what)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def make_recorder() -> type[Recorder]:
    return Recorder

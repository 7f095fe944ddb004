"""What an agent itself costs, with four workers attached that say every second what they are at, and nothing happening.

Bounds are generous, as other tests run beside this: `make bench` measures what the goals are about.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bench.agent_cost import WORKERS, Start, Use, start_agent

from reknit.rendezvous.keys import Keys
from reknit.rendezvous.records import LONG
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.runtime.ipc.link import Link

JOB = "cost"
SETTLE_SECONDS, IDLE_SECONDS = 1.5, 5.0


class Quiet:
    """An agent with four workers, which live in this process and load no torch."""

    def __init__(self, store: EtcdStore, etcd: EmbeddedEtcd, folder: Path) -> None:
        self.process, self.start = start_agent(store, etcd.endpoint, folder, JOB)
        self.links = [self._worker(folder / JOB / "socket", number) for number in range(WORKERS)]

    def _worker(self, path: Path, number: int) -> Link:
        hello = {"worker_id": f"w{number}", "incarnation": "a", "address": "127.0.0.1:1"}
        link = Link(path, hello, lambda message: None, lambda: None, lease_seconds=60)
        link.start()
        return link

    def idle(self, seconds: float) -> None:
        """Let time pass, in which each worker says every second that it waits."""
        end, second = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            second += 1
            where = {"generation": 1, "step": 3, "phase": "evaluation", "kind": LONG}
            for link in self.links:
                link.report({"type": "pulse", **where, "seconds": float(second), "limit": 600.0})
            time.sleep(1.0)

    def close(self) -> None:
        for link in self.links:
            link.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def quiet(etcd: EmbeddedEtcd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quiet]:
    store = EtcdStore(etcd.endpoint)
    quiet = Quiet(store, etcd, tmp_path_factory.mktemp("cost"))
    deadline = time.monotonic() + 30
    while len(store.list(Keys(JOB).members).entries) < WORKERS:
        assert time.monotonic() < deadline, "the workers have not attached"
        time.sleep(0.01)
    yield quiet
    quiet.close()
    store.close()


def test_an_agent_is_soon_ready(quiet: Quiet) -> None:
    start: Start = quiet.start
    assert start.cpu < 1.4, "on a machine of its own that is about the time that it takes"


def test_an_agent_is_small_and_idles_while_nothing_happens(quiet: Quiet) -> None:
    quiet.idle(SETTLE_SECONDS)
    before, begun = Use.of(quiet.process.pid), time.monotonic()
    quiet.idle(IDLE_SECONDS)
    after, passed = Use.of(quiet.process.pid), time.monotonic() - begun
    assert after.resident < 70
    assert (after.cpu - before.cpu) / passed < 0.04


def test_an_agent_loads_nothing_that_only_other_commands_need(quiet: Quiet) -> None:
    maps = Path(f"/proc/{quiet.process.pid}/maps").read_text()
    assert "grpc" in maps
    assert not [name for name in ("torch", "numpy", "aiohttp") if f"/{name}/" in maps]

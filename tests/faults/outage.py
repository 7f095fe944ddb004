"""What an outage of etcd must not do to a job, and what must work again after it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from tests.faults import invariants, problem
from tests.faults.etcd_cluster import EtcdCluster, wait_until
from tests.faults.harness import START_SECONDS, Event
from tests.faults.hosts import JOB, Hosts
from tests.faults.pace import assert_as_even, pace

PREFIX = f"/reknit/{JOB}/"


class Ordeal:
    """A job of some hosts on an etcd that gets into trouble again and again, from full strength to full strength."""

    def __init__(self, hosts: Hosts, etcd: EtcdCluster, replicas: int) -> None:
        self.hosts, self.etcd, self.replicas = hosts, etcd, replicas
        self._turn = itertools.count()
        self._away = 0.0  # the longest time for which etcd was away as a worker died

    def begin(self) -> None:
        """Wait until the job is at full strength for the first time."""
        self.hosts.wait_strength(self.replicas, timeout=START_SECONDS)

    @contextmanager
    def unnoticed(self, what: str, *, leases_end: bool = False, quiet: float = 1.0) -> Iterator[None]:
        """What is done to etcd in this block must not be felt by the training; at its end etcd must serve again.

        Waits until everybody's records are back (`leases_end`: under new leases), checks the pace until then, and that
        no generation passed and nobody was lost.  `quiet`: seconds for which it is watched before, to compare with.
        """
        before = {kept.lease for kept in self.etcd.stored(PREFIX).values()} if leases_end else set()
        hosts, start = self.hosts, time.monotonic()
        hosts.wait(lambda: time.monotonic() > start + quiet, 2 * quiet, "a quiet while")
        begin = time.monotonic()
        yield
        self.wait_records(other_than=before)
        end = time.monotonic()
        events = hosts.events()
        assert_as_even(pace(events, begin, end), pace(events, start, begin), what)
        self.assert_nothing_happened(begin, end)

    def assert_nothing_happened(self, begin: float, end: float) -> None:
        """No generation passed in this time, and nobody died."""
        happened = [e for e in self.hosts.events() if begin < e["t"] < end and e["event"] in ("plan", "worker_died")]
        assert not happened, happened

    def wait_records(self, timeout: float = 15.0, other_than: Collection[int] = ()) -> None:
        """Wait until etcd holds the records of all workers, under other leases than these, and knows who leads."""

        def complete() -> bool:
            held = self.etcd.stored(PREFIX)
            bound = {key for key, kept in held.items() if kept.lease and kept.lease not in other_than}
            workers = {f"members/{worker}" for run in self.hosts.living for worker in run.pids()}
            return workers | {"leader"} <= bound and {"plan", "spec"} <= held.keys()

        wait_until(complete, timeout, "the records to be in etcd")

    def kill_one(self) -> tuple[float, Event]:
        """SIGKILL a worker, each time another one; return when that was, and what its agent says of it."""
        turn, living = next(self._turn), self.hosts.living
        run = living[turn % len(living)]
        workers = sorted(run.pids())
        worker = workers[turn // len(living) % len(workers)]
        at = time.monotonic()
        pid = run.kill(worker)
        return at, run.wait_event("worker_died", worker=worker, pid=pid)

    def recover(self, died: Event, away: float = 0.0) -> None:
        """Wait for full strength after this death; all invariants hold, and nobody else died with it.

        `away`: for how long etcd was away meanwhile, so that the rest had to wait.
        """
        hosts = self.hosts
        step = hosts.wait_strength(self.replicas, died["t"])
        self._away = max(self._away, away)
        dead = [event["worker"] for event in hosts.of("worker_died", died["t"] - 0.001)]
        assert dead == [died["worker"]], hosts.generations(died["t"] - 1.0)
        self.check(up_to=step)

    def replace_a_worker(self) -> float:
        """A worker is killed and replaced: membership is as it should be.  Returns the gap (s)."""
        at, died = self.kill_one()
        gap = self.hosts.gap(at)
        self.recover(died)
        return gap

    def check(self, up_to: int | None = None) -> None:
        """All invariants; who died while etcd was away is mourned for as long as that took."""
        invariants.check(self.hosts.events(), problem.samples_of, up_to, waits=5.0 + self._away)

"""Several agents, each as on a host of its own, make one job; a worker dies, then a whole agent leaves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, TRAIN_PIPE, Event, JobRun

from reknit.rendezvous.store.embedded import EmbeddedEtcd

REPLICAS, PIPE = 3, 2


class Hosts:
    """The job's agents, each with as many workers as a replica has, and one events file each."""

    def __init__(self, runs: list[JobRun]) -> None:
        self.runs = runs

    def events(self) -> list[Event]:
        """All events of all hosts, in order of time (one machine, one clock)."""
        return sorted((event for run in self.runs for event in run.poll()), key=lambda event: event["t"])

    def wait_strength(self, replicas: int, since: float = 0.0, timeout: float = 20.0) -> int:
        """Wait for a step in a generation of so many replicas, newer than `since`; return it when all are beyond."""

        def reached() -> int | None:
            events = [event for event in self.events() if event["t"] > since]
            full = {event["generation"] for event in invariants.of(events, "plan") if event["replicas"] == replicas}
            committed = invariants.of(events, "committed")
            return next((event["step"] for event in committed if event["version"][0] in full), None)

        step: int = self.runs[0].wait(reached, timeout, f"a step with {replicas} replicas")
        for run in self.runs:
            if run.returncode() is None:
                run.wait_step(step + 3)
        return step

    def check(self, up_to: int | None = None) -> None:
        invariants.check(self.events(), problem.samples_of, up_to)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with EmbeddedEtcd() as etcd, ExitStack() as stack:
        runs = []
        for number in range(REPLICAS):
            name = f"host{number}"
            options = ("--etcd", etcd.endpoint, "--job", "shared", "--workers", str(PIPE), "--agent", name)
            run = JobRun(tmp_path, TRAIN_PIPE, replicas=f"1:{REPLICAS}", pipe=PIPE, options=options, name=name)
            runs.append(stack.enter_context(run))
        yield Hosts(runs)


def test_they_make_one_job_and_outlive_each_other(hosts: Hosts) -> None:
    second = hosts.runs[1]
    hosts.wait_strength(REPLICAS, timeout=START_SECONDS)
    before = {worker: pid for run in hosts.runs for worker, pid in run.pids().items()}
    assert sorted(before) == [f"host{host}-{number}" for host in range(REPLICAS) for number in range(PIPE)]
    assert {next(run.of("agent_started"))["job"] for run in hosts.runs} == {"shared"}

    killed = second.kill("host1-0")
    died = second.wait_event("worker_died", pid=killed)
    hosts.check(hosts.wait_strength(REPLICAS, died["t"]))

    # The leader's own host is the one that leaves: leading costs nothing extra.
    leader = next(run for run in hosts.runs if "leads the job" in run.output())
    rest = [run for run in hosts.runs if run is not leader]
    at = hosts.events()[-1]["t"]
    os.kill(leader.pid, signal.SIGTERM)
    assert leader.wait_end() == 128 + signal.SIGTERM
    hosts.runs = [*rest, leader]
    hosts.check(hosts.wait_strength(REPLICAS - 1, at))

    last = rest[0].stop_soon()
    hosts.runs = rest
    assert [run.wait_end() for run in rest] == [0, 0]
    hosts.runs = [*rest, leader]
    hosts.check()
    invariants.finished_alike(hosts.events(), last, (REPLICAS - 1) * PIPE)
    untouched = before.keys() - {"host1-0"} - {worker for worker in before if worker.startswith(leader.name)}
    after = {worker: pid for run in rest for worker, pid in run.pids().items()}
    assert {worker: after[worker] for worker in untouched} == {worker: before[worker] for worker in untouched}

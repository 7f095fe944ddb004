"""Several agents, each as on a host of its own, make one job; a worker dies, then a whole agent leaves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.faults import invariants
from tests.faults.harness import START_SECONDS
from tests.faults.hosts import JOB, several

REPLICAS, PIPE = 3, 2


def test_they_make_one_job_and_outlive_each_other(tmp_path: Path) -> None:
    with several(tmp_path, REPLICAS) as hosts:
        second = hosts.runs[1]
        hosts.wait_strength(REPLICAS, timeout=START_SECONDS)
        before = {worker: pid for run in hosts.runs for worker, pid in run.pids().items()}
        assert sorted(before) == [f"host{host}-{number}" for host in range(REPLICAS) for number in range(PIPE)]
        assert {next(run.of("agent_started"))["job"] for run in hosts.runs} == {JOB}

        killed = second.kill("host1-0")
        died = second.wait_event("worker_died", pid=killed)
        hosts.check(hosts.wait_strength(REPLICAS, died["t"]))

        # The leader's own host is the one that drains: leading costs nothing extra.
        leader = hosts.leader
        at = hosts.events()[-1]["t"]
        os.kill(leader.pid, signal.SIGTERM)
        assert leader.wait_end() == 0
        hosts.check(hosts.wait_strength(REPLICAS - 1, at))

        rest = hosts.living
        last = rest[0].stop_soon()
        assert [run.wait_end() for run in rest] == [0, 0]
        hosts.check()
        invariants.finished_alike(hosts.events(), last, (REPLICAS - 1) * PIPE)
        untouched = before.keys() - {"host1-0"} - {worker for worker in before if worker.startswith(leader.name)}
        after = {worker: pid for run in rest for worker, pid in run.pids().items()}
        assert {worker: after[worker] for worker in untouched} == {worker: before[worker] for worker in untouched}

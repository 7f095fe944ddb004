"""The etcd that a standalone job brings along is killed: its agent starts it again, and the job forgets nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, TRAIN_DATA, JobRun

REPLICAS = 2


def etcd_of(run: JobRun) -> int | None:
    return next((pid for pid, command in run.processes().items() if "--data-dir" in command), None)


def test_the_etcd_of_a_standalone_job_is_killed(tmp_path: Path) -> None:
    with JobRun(tmp_path, TRAIN_DATA, replicas=str(REPLICAS)) as run:
        run.wait_strength(REPLICAS, timeout=START_SECONDS)
        etcd = etcd_of(run)
        assert etcd is not None
        since = len(run.poll())
        os.kill(etcd, signal.SIGKILL)
        killed = run.kill("worker-0")
        died = run.wait_event("worker_died", pid=killed)
        run.wait_strength(REPLICAS, run.events.index(died))
        assert etcd_of(run) not in (None, etcd)
        assert [event["worker"] for event in run.of("worker_died", since)] == ["worker-0"]
        last = run.stop_soon()
        assert run.wait_end() == 0
        invariants.check(run.events, problem.samples_of)
        invariants.finished_alike(run.events, last, REPLICAS)

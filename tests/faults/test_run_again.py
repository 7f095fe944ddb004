"""A job's name may be used again: after it was stopped, and after it has finished; each time it says so."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.faults.following import STOP
from tests.faults.harness import START_SECONDS, TRAIN_DATA, JobRun

from reknit.rendezvous.store.embedded import EmbeddedEtcd

LEASE = 5.0  # the default


def again(folder: Path, etcd: EmbeddedEtcd, name: str) -> JobRun:
    """A run of the same job as every other one."""
    options = ("--etcd", etcd.endpoint, "--job", "again", "--workers", "2")
    return JobRun(folder, TRAIN_DATA, replicas="2", options=options, name=name)


def started(run: JobRun) -> str:
    """Wait until the run trains; return the reason of the plan with which it began."""
    run.wait(lambda: run.step >= 3, START_SECONDS, "step 3")
    return str(next(event["reason"] for event in run.of("plan") if event["replicas"] > 0))


def test_a_job_that_was_stopped_or_has_finished_is_started_again_from_step_0(tmp_path: Path) -> None:
    with EmbeddedEtcd() as etcd:

        def run(name: str) -> JobRun:
            return again(tmp_path, etcd, name)

        with run("first") as first:
            assert "again" not in started(first)
            os.kill(first.pid, signal.SIGINT)
            assert first.wait_end() == 128 + signal.SIGINT
        with run("second") as second:
            assert "nobody of the earlier run" in started(second)
            assert second.generation > first.generation
            assert min(event["step"] for event in second.of("committed")) == 1
            second.stop_soon()
            assert second.wait_end() == 0
        (tmp_path / "orders" / STOP).unlink()
        with run("third") as third:
            assert "has finished: the job starts again from step 0" in started(third)
            third.stop_soon()
            assert third.wait_end() == 0


def test_a_job_that_was_killed_whole_is_started_again_at_once(tmp_path: Path) -> None:
    """Its records stand as if everybody lived, until the lease ends: by default after 5 s."""
    with EmbeddedEtcd() as etcd:
        with again(tmp_path, etcd, "first") as first:
            started(first)
            first.end()
            killed = time.monotonic()
        with again(tmp_path, etcd, "second") as second:
            assert "nobody of the earlier run" in started(second)
            if next(second.of("agent_started"))["t"] - killed < LEASE:  # a busy machine may have taken longer
                assert "waiting for a sign of life" in second.output()
            assert min(event["step"] for event in second.of("committed")) == 1
            second.stop_soon()
            assert second.wait_end() == 0


def test_a_job_that_lost_all_its_state_ends_and_can_be_started_again(tmp_path: Path) -> None:
    with EmbeddedEtcd() as etcd:
        with again(tmp_path, etcd, "first") as first:
            started(first)
            pids = first.pids().values()
            for pid in pids:  # stopped, they cannot hand anything on to each other's successors
                os.kill(pid, signal.SIGSTOP)
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            assert first.wait_end() == 3
            assert "if it is started again, it begins at step 0" in first.output()
            steps = [event["step"] for event in first.of("committed") if event["worker"].endswith("-0")]
            assert steps == sorted(set(steps))  # it never went back
        with again(tmp_path, etcd, "second") as second:
            assert "lost its state: the job starts again from step 0" in started(second)
            second.stop_soon()
            assert second.wait_end() == 0

"""A job's name may be used again: after it was stopped, and after it has finished; each time it says so."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.faults.following import STOP
from tests.faults.harness import START_SECONDS, TRAIN_DATA, JobRun

from reknit.rendezvous.store.embedded import EmbeddedEtcd


def started(run: JobRun) -> str:
    """Wait until the run trains; return the reason of the plan with which it began."""
    run.wait(lambda: run.step >= 3, START_SECONDS, "step 3")
    return str(next(event["reason"] for event in run.of("plan") if event["replicas"] > 0))


def test_a_job_that_was_stopped_or_has_finished_is_started_again_from_step_0(tmp_path: Path) -> None:
    with EmbeddedEtcd() as etcd:
        options = ("--etcd", etcd.endpoint, "--job", "again", "--workers", "2")

        def run(name: str) -> JobRun:
            return JobRun(tmp_path, TRAIN_DATA, replicas="2", options=options, name=name)

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

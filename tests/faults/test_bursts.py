"""Many die at once, or in a burst: one or two generations follow, not one for each."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, TRAIN_DATA, JobRun

from reknit.rendezvous.view import Patience

REPLICAS = 6
BURST = 0.1  # seconds


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobRun]:
    """Six replicas of one worker, hit again and again."""
    options = ("--standalone", "--backoff", "0")
    with JobRun(tmp_path_factory.mktemp("bursts"), TRAIN_DATA, replicas=str(REPLICAS), options=options) as run:
        run.wait_strength(REPLICAS, timeout=START_SECONDS)
        yield run


def strike(run: JobRun, victims: list[str], within: float) -> None:
    """Kill the victims within so many seconds, held back from coming again: few generations follow.

    The first loss is answered at once, further ones once for each window of `Patience.burst` that the kills took: two
    generations at most, unless a busy machine kept this test from killing in time.
    """
    since, pids = len(run.poll()), run.pids()
    pause = within / max(1, len(victims) - 1)
    with run.hold():
        at = time.monotonic()
        for number, worker in enumerate(victims):
            while time.monotonic() < at + number * pause:
                pass
            with suppress(ProcessLookupError):
                os.kill(pids[worker], signal.SIGKILL)
        took = time.monotonic() - at
        run.wait_strength(REPLICAS - len(victims), since)
        losses = [plan for plan in run.of("plan", since) if "lost" in plan["reason"]]
    whole = run.wait_strength(REPLICAS, len(run.events), timeout=START_SECONDS)
    run.wait_step(whole["step"] + 3)
    invariants.check(run.events, problem.samples_of, up_to=whole["step"])
    assert 1 <= len(losses) <= 1 + max(1, math.ceil(took / Patience().burst)), f"the kills took {took:.3f} s"


def test_half_of_the_workers_die_at_once(run: JobRun) -> None:
    strike(run, sorted(run.pids())[::2], 0)


def test_all_but_one_die_at_once(run: JobRun) -> None:
    survivor, pid = "worker-4", run.pids()["worker-4"]
    strike(run, sorted(run.pids().keys() - {survivor}), 0)
    assert run.pids()[survivor] == pid


def test_five_die_within_a_tenth_of_a_second(run: JobRun) -> None:
    strike(run, sorted(run.pids())[:5], BURST)


def test_the_battered_job_finishes(run: JobRun) -> None:
    last = run.stop_soon()
    assert run.wait_end() == 0
    invariants.check(run.events, problem.samples_of)
    invariants.finished_alike(run.events, last, REPLICAS)

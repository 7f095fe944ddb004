"""The injector strikes what it was told to, all at once, and never whoever took a number over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reknit.runtime.chaos.injector import Grip, strike
from reknit.runtime.identity import look, why_no_agent, why_no_worker

WaitUntil = Callable[..., None]


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(3)]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_all_die_of_one_strike(sleepers: list[subprocess.Popen[bytes]]) -> None:
    before = time.monotonic()
    moment = strike(process.pid for process in sleepers)
    assert before <= moment <= time.monotonic()
    assert [process.wait(5) for process in sleepers] == [-signal.SIGKILL] * 3


def test_what_is_stopped_goes_on_by_the_same_grip(
    sleepers: list[subprocess.Popen[bytes]], wait_until: WaitUntil
) -> None:
    pid = sleepers[0].pid
    with Grip([pid]) as grip:
        grip.strike(signal.SIGSTOP)
        wait_until(lambda: state(pid) == "T", timeout=5, what="the stop")
        grip.strike(signal.SIGCONT)
        wait_until(lambda: state(pid) == "S", timeout=5, what="the end of the stop")
        grip.strike(signal.SIGSTOP)
        assert not grip.all_ended()
        grip.strike(signal.SIGKILL)
        assert sleepers[0].wait(5) == -signal.SIGKILL
        assert grip.all_ended()
        grip.strike(signal.SIGCONT)  # of a process that is no more: nothing


def test_the_missing_are_told_and_no_descriptor_is_left(sleepers: list[subprocess.Popen[bytes]]) -> None:
    sleepers[0].kill()
    sleepers[0].wait()
    before = len(os.listdir("/proc/self/fd"))
    with Grip([process.pid for process in sleepers]) as grip:
        assert grip.missing == [sleepers[0].pid]
        assert grip.pids == [process.pid for process in sleepers[1:]]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_is_seen_as_it_is() -> None:
    ours = {"REKNIT_WORKER_ID": "w", "REKNIT_SOCKET": "s"}
    process = subprocess.Popen([sys.executable, "-c", "input()", "--job", "j"], stdin=subprocess.PIPE, env=ours)
    try:
        seen = look(process.pid)
        assert seen is not None
        assert (seen.pid, seen.uid, seen.ancestors[0]) == (process.pid, os.getuid(), os.getpid())
        assert seen.arguments == (sys.executable, "-c", "input()", "--job", "j")
        assert dict(seen.environment) == ours
        assert why_no_worker(seen, "w", 0) == ""
        assert why_no_worker(seen, "v", os.getpid()) == ""
        assert "is not v" in why_no_worker(seen, "v", 0)
        assert "no agent of job j" in why_no_agent(seen, "j")
    finally:
        process.kill()
        process.wait()
    assert look(process.pid) is None

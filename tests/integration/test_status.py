"""A real job as seen from outside, by `reknit status` and by its agent's GET /status; and by nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.faults.harness import START_SECONDS, TRAIN_DATA, JobRun

from reknit.health.straggler import RATIO
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.shows import AGAIN, EVERY, LEASE
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.rendezvous.store.protocol import Lease

KEYS = Keys("seen")
QUIET = 1.5  # seconds without a single write, while all that is told is told each second
SOON = 15.0


class Seen:
    """A job of two replicas in an etcd of its own, and those who look at it."""

    def __init__(self, job: JobRun, endpoint: str) -> None:
        self.job, self.endpoint = job, endpoint
        self.store = EtcdStore(endpoint)

    def command(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "reknit.runtime.cli", "status", "--etcd", self.endpoint, *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=False)

    def status(self) -> dict[str, Any]:
        done = self.command("--json")
        assert (done.returncode, done.stderr) == (0, "")
        return dict(json.loads(done.stdout))

    def wait_status(self, condition: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + SOON
        while not condition(found := self.status()):
            if time.monotonic() > deadline:
                self.job.fail(f"waited in vain for another status than {json.dumps(found)}")
        return found

    def wait_quiet(self, timeout: float) -> None:
        """Wait until nothing has been written for a while, though the job trains."""
        deadline, since, step = time.monotonic() + timeout, time.monotonic(), self.job.step
        revision = self.store.list(KEYS.shows).revision
        while time.monotonic() - since < QUIET:
            self.job.poll()
            newer = self.store.list(KEYS.shows).revision
            if newer != revision:
                revision, since, step = newer, time.monotonic(), self.job.step
            if time.monotonic() > deadline:
                self.job.fail("it is written all the time, though nobody looks")
            time.sleep(0.05)
        assert self.job.step > step


def places(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {place["worker"]: place for replica in found["grid"] for place in replica["places"]}


def is_well(place: dict[str, Any]) -> bool:
    """Alive; or, as its steps are short and the host is busy, a straggler."""
    return bool(place["verdict"] == "alive" or (place["verdict"] == "slow" and place["slowdown"] >= RATIO))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with EmbeddedEtcd() as etcd:
        options = ["--etcd", etcd.endpoint, "--job", KEYS.job, "--agent", "host0", "--workers", "3"]
        run = JobRun(tmp_path_factory.mktemp("seen"), TRAIN_DATA, replicas="2", options=options)
        with run:
            run.wait_step(5, START_SECONDS)
            seen = Seen(run, etcd.endpoint)
            yield seen
            seen.store.close()


def test_nothing_is_written_while_nobody_looks(seen: Seen) -> None:
    seen.wait_quiet(30.0)
    assert seen.store.get(KEYS.look) is None
    assert not seen.store.list(KEYS.shows).entries


def test_the_status_of_a_job_that_trains_and_of_a_worker_that_is_stopped(seen: Seen) -> None:
    found = seen.status()
    assert (found["job"], found["state"], found["leader"]) == ("seen", "running", "host0")
    assert all(map(is_well, places(found).values()))
    assert len(places(found)) == 2
    assert len(found["spares"]) == 1
    assert found["step"] >= 5
    assert found["events"][-1]["kind"] == "begin"

    victim = max(places(found))
    pid = places(found)[victim]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        stopped = places(seen.wait_status(lambda now: places(now)[victim]["phase"] == "stopped"))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (stopped[victim]["verdict"], stopped[victim]["pid"]) == ("slow", pid)
    assert "stopped" in stopped[victim]["reason"]
    (other,) = stopped.keys() - {victim}
    assert is_well(stopped[other])
    step = stopped[victim]["step"]
    later = places(seen.wait_status(lambda now: (places(now)[victim]["step"] or 0) > step))
    assert is_well(later[victim])


def test_the_picture_fits_a_terminal_and_is_plain_where_it_goes_elsewhere(seen: Seen) -> None:
    done = seen.command("--job", KEYS.job)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("seen  RUNNING  generation 1  step ")
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    absent = seen.command("--job", "another")
    assert (absent.returncode, absent.stdout) == (1, "another  ABSENT\nthere is no job another\n")


def test_who_has_looked_leaves_nothing_and_it_is_quiet_again(seen: Seen) -> None:
    seen.status()
    assert seen.store.get(KEYS.look) is None
    seen.wait_quiet(AGAIN + EVERY + 30.0)
    assert not seen.store.list(KEYS.shows).entries


def test_an_agent_tells_the_same_as_the_command_and_looks_for_no_longer_than_it_is_asked(seen: Seen) -> None:
    http = seen.status()["agents"][0]["http"]

    def ask() -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{http}/status", timeout=10.0) as answer:
            return dict(json.load(answer))

    first = ask()
    assert first.keys() == seen.status().keys()
    assert all(map(is_well, places(first).values()))
    seen.job.wait(lambda: ask()["step"] > first["step"], SOON, "a status with a newer step")
    # The command has taken its look along, and the agent does not look again at once.
    entry = seen.job.wait(lambda: ask() and seen.store.get(KEYS.look), SOON, "the agent's look")
    assert b"agent host0" in entry.value
    left = seen.store.time_to_live(Lease(entry.lease, 0))
    assert left is None or left <= LEASE, "it ends by itself"

"""A host's link goes down: nobody is told, packets just vanish.  Default settings.

The others find out by the silence and train on; the host itself stops, says why, and comes back as new.  If the link is
back before anybody counts as lost, nothing changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.harness import START_SECONDS, JobRun
from tests.faults.network import NetworkedHosts, networked

REPLICAS, WORKERS = 3, 2
DETECT, LEASE = 5.0, 5.0  # the defaults
BLINK = 1.0  # seconds without a link that everybody must bear: less than the half of DETECT that a silent peer is given
IN_FLIGHT = 0.5  # a step whose vote had arrived when the link went

Recorder = Callable[[str, object], None]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkedHosts]:
    folder: Path = tmp_path_factory.mktemp("silent")
    with networked(folder, REPLICAS) as hosts:
        hosts.wait_strength(REPLICAS, timeout=START_SECONDS)
        yield hosts


@pytest.fixture
def hosts(running: NetworkedHosts) -> NetworkedHosts:
    """The same job for all tests here: each leaves it at full strength."""
    running.require_strength(REPLICAS)
    return running


def lose_and_regain(hosts: NetworkedHosts, lost: JobRun, seconds: float) -> float:
    """The link of one host goes, and comes back when that has noticed, after `seconds` at least; return the gap."""
    before = {run: run.pids() for run in hosts.runs}
    said = len(lost.output())
    hosts.network.unplug(lost.name)
    hosts.left_out = {lost}
    at = time.monotonic()
    gap = hosts.gap(at)
    hosts.wait_strength(REPLICAS - 1, at)
    assert all(run.pids() == before[run] for run in hosts.living), "a survivor was restarted"
    reasons = [plan["reason"] for plan in hosts.generations(at).values()]
    assert any(worker in reason for worker in before[lost] for reason in reasons), reasons

    lost.wait(lambda: "cut off" in lost.output()[said:], LEASE + 3.0, "it to say that it is cut off")
    lost.wait(lambda: time.monotonic() > at + seconds, seconds, "the time that it shall be cut off")
    assert not [e for e in lost.of("committed") if e["t"] > at + IN_FLIGHT], "the host that was cut off trained on"
    assert not [e for e in lost.of("plan") if e["t"] > at], "the host that was cut off heard or made a plan"

    back = time.monotonic()
    hosts.network.plug(lost.name)
    hosts.left_out = set()
    hosts.check(hosts.wait_strength(REPLICAS, back))
    after = {run: run.pids() for run in hosts.runs}
    assert all(after[lost][worker] != pid for worker, pid in before[lost].items()), "a worker rejoined as the old one"
    assert all(after[run] == before[run] for run in hosts.runs if run is not lost)
    assert len(hosts.generations(at)) <= 5
    return gap


def test_a_job_over_a_network_outlives_a_killed_worker(hosts: NetworkedHosts) -> None:
    killed = hosts.runs[1].kill("host1-0")
    died = hosts.runs[1].wait_event("worker_died", pid=killed)
    hosts.check(hosts.wait_strength(REPLICAS, died["t"]))


def test_a_link_that_is_soon_back_changes_nothing(hosts: NetworkedHosts) -> None:
    away = hosts.runs[0]
    before = hosts.generations(0).keys()
    hosts.network.unplug(away.name)
    at = time.monotonic()
    away.wait(lambda: time.monotonic() > at + BLINK, BLINK + 1, "the time that it shall be away")
    hosts.network.plug(away.name)
    step = hosts.runs[1].step + 3
    for run in hosts.runs:
        run.wait_step(step)
    assert hosts.generations(0).keys() == before
    hosts.check(step - 3)


def test_a_hosts_link_goes_down(hosts: NetworkedHosts, record_property: Recorder) -> None:
    leader = hosts.leader
    gap = lose_and_regain(hosts, next(run for run in hosts.runs if run is not leader), LEASE + 1)
    record_property("gap", gap)
    assert gap <= DETECT + 1


def test_the_leaders_link_goes_down(hosts: NetworkedHosts, record_property: Recorder) -> None:
    gap = lose_and_regain(hosts, hosts.leader, 0)
    record_property("gap", gap)
    assert gap <= DETECT + 1

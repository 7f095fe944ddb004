"""A cut that does not part the hosts cleanly: who reaches etcd but not its peers, the reverse, and one link of three.

The one that cannot serve is left out, the others train on, and it is not taken back and thrown out in a loop: each time
it fails again it waits for longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.faults.harness import START_SECONDS, JobRun
from tests.faults.network import NetworkedHosts, networked

REPLICAS = 3
DETECT, LEASE, CONNECT = 1.0, 2.0, 2.0
OPTIONS = [f"--{name}={value}" for name, value in (("detect", DETECT), ("lease", LEASE), ("connect", CONNECT))]
NOTICE = 8.0  # to find a silent peer, to try to build the next groups in vain, and to agree on whose fault it is
TRIES = 3

Recorder = Callable[[str, object], None]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkedHosts]:
    folder: Path = tmp_path_factory.mktemp("asymmetric")
    with networked(folder, REPLICAS, options=OPTIONS) as hosts:
        hosts.wait_strength(REPLICAS, timeout=START_SECONDS)
        yield hosts


@pytest.fixture
def hosts(running: NetworkedHosts) -> NetworkedHosts:
    """The same job for all tests here: each leaves it at full strength."""
    running.require_strength(REPLICAS)
    return running


def wait_left_out(hosts: NetworkedHosts, since: float) -> JobRun:
    """Wait until the others train without one host; return that one."""
    hosts.wait(lambda: fewer(hosts, since), NOTICE, "a plan without one host")
    newest = max(hosts.generations(since).values(), key=lambda plan: plan["generation"])

    def without() -> list[JobRun]:
        placed = {event["run"] for event in hosts.of("placed", since, generation=newest["generation"])}
        return [run for run in hosts.runs if run.name not in placed] if len(placed) == REPLICAS - 1 else []

    out: JobRun
    (out,) = hosts.wait(without, 2.0, "the places of the others")
    hosts.left_out = {out}
    hosts.wait_strength(REPLICAS - 1, since)
    return out


def fewer(hosts: NetworkedHosts, since: float) -> list[float]:
    """The moments at which a host was left out: of plans with fewer replicas than the plan before them."""
    plans = [plan for _, plan in sorted(hosts.generations(0).items())]
    return [new["t"] for old, new in pairwise(plans) if new["t"] > since and new["replicas"] < old["replicas"]]


def rests(hosts: NetworkedHosts, since: float) -> list[float]:
    """For how long the host that was left out was not tried again, each time."""
    full = [plan["t"] for plan in hosts.generations(since).values() if plan["replicas"] == REPLICAS]
    return [later[0] - lost for lost in fewer(hosts, since) if (later := [t for t in full if t > lost])]


def assert_ever_rarer(hosts: NetworkedHosts, out: JobRun, at: float) -> None:
    """The one that is left out is tried again, in vain, and each time after a longer rest."""
    timeout = sum(DETECT * 2**number + NOTICE for number in range(TRIES))
    hosts.wait(lambda: len(fewer(hosts, at)) >= TRIES, timeout, f"{out.name} to be left out {TRIES} times")
    rested = rests(hosts, at)
    assert len(rested) >= TRIES - 1
    for number, rest in enumerate(rested):
        assert rest >= 0.9 * DETECT * 2**number, f"{out.name} was tried again after {rested} s"
    assert len(hosts.generations(at)) <= 3 * TRIES, hosts.generations(at)
    newest = max(hosts.of("committed"), key=lambda event: event["t"])
    assert newest["run"] != out.name


def assert_taken_back(hosts: NetworkedHosts, before: dict[JobRun, dict[str, int]], out: JobRun) -> None:
    """Once nothing is cut any more there is full strength again, and nobody but `out` was restarted."""
    healed = time.monotonic()
    hosts.left_out = set()
    hosts.wait_strength(REPLICAS, healed, timeout=DETECT * 2**TRIES + NOTICE)
    hosts.check(hosts.wait_strength(REPLICAS, healed))
    after = {run: run.pids() for run in hosts.runs}
    assert {run: after[run] for run in hosts.runs if run is not out} == {
        run: before[run] for run in hosts.runs if run is not out
    }
    assert all(after[out][worker] != pid for worker, pid in before[out].items())


def test_who_reaches_its_peers_but_not_etcd_is_left_out(hosts: NetworkedHosts, record_property: Recorder) -> None:
    before = {run: run.pids() for run in hosts.runs}
    cut = hosts.leader  # the most that can be lost so
    said = len(cut.output())
    hosts.network.cut(cut.name, "etcd")
    at = time.monotonic()
    assert wait_left_out(hosts, at) is cut
    alone = fewer(hosts, at)[0]
    record_property("left out after", alone - at)
    assert any(alone - 0.5 < event["t"] < alone for event in hosts.of("committed")), "training had stood still"
    cut.wait(lambda: "cut off" in cut.output()[said:], LEASE + 3.0, "it to say that it is cut off")
    for run in hosts.living:
        run.wait_steps(3)
    assert not [event for event in cut.of("committed") if event["t"] > alone + 0.5], "it trained on"
    assert len(hosts.generations(at)) <= 3
    hosts.network.heal(cut.name, "etcd")
    assert_taken_back(hosts, before, cut)


def test_one_link_between_two_hosts_is_cut(hosts: NetworkedHosts, record_property: Recorder) -> None:
    before = {run: run.pids() for run in hosts.runs}
    one, other, _ = hosts.runs
    hosts.network.cut(one.name, other.name)
    at = time.monotonic()
    out = wait_left_out(hosts, at)
    assert out in (one, other)
    record_property("gap", hosts.gap(at))
    assert_ever_rarer(hosts, out, at)
    hosts.network.heal(one.name, other.name)
    assert_taken_back(hosts, before, out)


def test_who_reaches_etcd_but_not_its_peers_is_left_out(hosts: NetworkedHosts, record_property: Recorder) -> None:
    before = {run: run.pids() for run in hosts.runs}
    cut = hosts.runs[-1]  # who has not been put out by another test here
    others = [run.name for run in hosts.runs if run is not cut]
    hosts.network.cut(cut.name, *others)
    at = time.monotonic()
    assert wait_left_out(hosts, at) is cut
    record_property("gap", hosts.gap(at))
    assert_ever_rarer(hosts, cut, at)
    hosts.network.heal(cut.name, *others)
    assert_taken_back(hosts, before, cut)

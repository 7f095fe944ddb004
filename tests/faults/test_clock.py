"""The wall clock jumps an hour, forward and back, in the agents and in the workers: nothing happens."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from tests.faults.etcd_cluster import EtcdCluster
from tests.faults.harness import TRAIN_DATA, JobRun
from tests.faults.hosts import Hosts
from tests.faults.outage import Ordeal
from tests.faults.wall_clock import WallClock

HOUR = 3600
REPLICAS = 2
DETECT = 2.0  # and so long is a lease
LONG_ENOUGH = 2 * DETECT  # for a lease that was thought to have ended, and for every timer


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    return WallClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture(scope="module")
def ordeal(clock: WallClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ordeal]:
    folder = tmp_path_factory.mktemp("job")
    with EtcdCluster(folder / "etcd") as etcd:
        options = ("--detect", str(DETECT), "--backoff", "0")
        hosts = Hosts(
            folder, etcd.endpoint, script=TRAIN_DATA, replicas=str(REPLICAS), pipe=1, workers=REPLICAS, options=options
        )
        try:
            hosts.add(prefix=clock.prefix)
            ordeal = Ordeal(hosts, etcd, REPLICAS)
            ordeal.begin()
            yield ordeal
        finally:
            hosts.close()


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["forward", "back"])
def test_the_wall_clock_jumps_an_hour(ahead: int, ordeal: Ordeal, clock: WallClock) -> None:
    (run,) = ordeal.hosts.runs
    assert all(clock.is_in(pid) for pid in (run.pid, *run.pids().values()))
    clock.set(0)
    since = run.generation
    with ordeal.unnoticed(f"a jump of {ahead} s"):
        clock.set(ahead)
        time.sleep(LONG_ENOUGH)
    assert run.generation == since
    ordeal.replace_a_worker()
    assert clock_of(run) in [time.strftime("%H:%M", time.localtime(time.time() + ahead - ago)) for ago in (0, 30, 60)]


def clock_of(run: JobRun) -> str:
    """The time of day at which the agent logged its last line."""
    return str(re.findall(r"^(\d\d:\d\d):\d\d reknit", run.output(), re.MULTILINE)[-1])


def test_the_job_finishes(ordeal: Ordeal) -> None:
    ordeal.hosts.finish()

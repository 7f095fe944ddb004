"""etcd of three members: its leader dies, its quorum is lost, all of it freezes, and training keeps its pace.

One job of two hosts, from full strength to full strength.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.faults.etcd_cluster import EtcdCluster
from tests.faults.harness import TRAIN_DATA
from tests.faults.hosts import Hosts
from tests.faults.outage import Ordeal
from tests.faults.wall_clock import WallClock

REPLICAS = 2
OUTAGE, FREEZE, HOUR = 60.0, 10.0, 3600
BRIEF, QUIET = 2.0, 3.0  # between two faults; before the first


class Run(Ordeal):
    """A job on three members, with a wall clock of its own."""

    def __init__(self, hosts: Hosts, etcd: EtcdCluster, clock: WallClock) -> None:
        super().__init__(hosts, etcd, REPLICAS)
        self.clock = clock


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("members")
    clock = WallClock(folder)
    with EtcdCluster(folder / "etcd", 3) as etcd:
        hosts = Hosts(
            folder,
            etcd.endpoint,
            script=TRAIN_DATA,
            replicas=str(REPLICAS),
            pipe=1,
            workers=1,
            options=("--backoff", "0"),
            arguments=("--step-ms", "30"),
        )
        try:
            for _ in range(REPLICAS):
                hosts.add(prefix=clock.prefix)
            job = Run(hosts, etcd, clock)
            job.begin()
            yield job
        finally:
            hosts.close()


def test_the_leader_of_three_is_killed(run: Run) -> None:
    leader = run.etcd.leader()
    with run.unnoticed("the death of etcd's leader"):
        leader.kill()
        run.etcd.wait_healthy(*(member for member in run.etcd.members if member is not leader))
    run.replace_a_worker()  # two members are enough
    leader.start()
    run.etcd.wait_healthy()


@pytest.mark.timeout(240)
def test_a_minute_without_quorum_a_freeze_and_a_jump_of_the_clock(run: Run) -> None:
    with run.unnoticed("a minute without quorum, a freeze and a jump of the clock", quiet=QUIET):
        for member in run.etcd.members[:2]:
            member.kill()
        time.sleep(OUTAGE)
        for member in run.etcd.members[:2]:
            member.start()
        run.etcd.wait_healthy()
        run.wait_records()
        time.sleep(BRIEF)
        with ExitStack() as frozen:
            for member in run.etcd.members:
                frozen.enter_context(member.frozen())
            time.sleep(FREEZE)
        run.etcd.wait_healthy()
        run.wait_records()
        run.clock.set(HOUR)
        time.sleep(BRIEF)
    run.replace_a_worker()


def test_the_job_finishes(run: Run) -> None:
    run.hosts.finish()

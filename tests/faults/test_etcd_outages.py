"""etcd dies, freezes, forgets, fills up, loses its disk: training goes on as before, and membership afterwards.

One job of two hosts is hit by one outage after the other.  Each must pass unnoticed: steps at the same pace, no new
generation, nobody lost.  Then a worker is killed and replaced, which needs all of etcd again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.faults import invariants
from tests.faults.etcd_cluster import EtcdCluster
from tests.faults.harness import START_SECONDS
from tests.faults.hosts import Hosts
from tests.faults.outage import PREFIX, Ordeal

Record = Callable[[str, object], None]

REPLICAS, PIPE = 2, 2
AWAY = 3.0  # seconds: less than the default lease
FROZEN = 10.0  # all leases expire meanwhile
BACK = 2.0  # seconds from etcd's return until the survivors of a loss train again; it takes a third of a second
LEASE = (
    5.0  # seconds, the default, which begins anew for all when etcd is back: who waits for its end is later than that
)
QUOTA = 8 << 20  # bytes


@pytest.fixture(scope="module")
def ordeal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ordeal]:
    folder = tmp_path_factory.mktemp("outages")
    with EtcdCluster(folder / "etcd", arguments=[f"--quota-backend-bytes={QUOTA}"]) as etcd:
        hosts = Hosts(
            folder,
            etcd.endpoint,
            replicas=str(REPLICAS + 1),
            pipe=PIPE,
            workers=PIPE,
            options=("--backoff", "0"),  # nobody here dies of a fault of its own
            arguments=("--step-ms", "30"),
        )
        try:
            for _ in range(REPLICAS):
                hosts.add()
            ordeal = Ordeal(hosts, etcd, REPLICAS)
            ordeal.begin()
            yield ordeal
        finally:
            hosts.close()


def stay(seconds: float) -> None:
    """What is tested is that nothing happens in this time."""
    time.sleep(seconds)


def test_killed_and_restarted(ordeal: Ordeal) -> None:
    with ordeal.unnoticed("a kill and a restart"):
        ordeal.etcd.only.kill()
        stay(AWAY)
        ordeal.etcd.only.start()
        ordeal.etcd.wait_healthy()
    ordeal.replace_a_worker()


def test_frozen_until_all_leases_have_expired(ordeal: Ordeal) -> None:
    with ordeal.unnoticed("a freeze", leases_end=True):
        with ordeal.etcd.only.frozen():
            stay(FROZEN)
        ordeal.etcd.wait_healthy()
    ordeal.replace_a_worker()


def test_compacted(ordeal: Ordeal) -> None:
    with ordeal.unnoticed("a compaction"):
        ordeal.etcd.compact()
        with ordeal.etcd.elsewhere() as elsewhere:  # where no watch can keep up with it
            elsewhere.compact()
    ordeal.replace_a_worker()


def test_full(ordeal: Ordeal) -> None:
    with ordeal.unnoticed("a full disk"):
        ordeal.etcd.fill()
        stay(AWAY)
        ordeal.etcd.make_room()
    ordeal.replace_a_worker()


def test_a_worker_dies_while_etcd_is_full(ordeal: Ordeal) -> None:
    ordeal.etcd.fill()
    at, died = ordeal.kill_one()
    stay(1.0)
    ordeal.assert_nothing_happened(died["t"], time.monotonic())
    ordeal.etcd.make_room()
    back = time.monotonic()
    print(f"training {ordeal.hosts.gap(at) - (back - at):.2f} s after room was made")
    ordeal.recover(died, away=back - at)


def test_a_worker_dies_while_etcd_is_down(ordeal: Ordeal, record_property: Record) -> None:
    ordeal.etcd.only.kill()
    at, died = ordeal.kill_one()
    stay(AWAY)
    ordeal.etcd.only.start()
    ordeal.etcd.wait_healthy()
    assert_trains_again(ordeal, at, died, record_property)


def test_a_worker_dies_while_etcd_is_frozen(ordeal: Ordeal, record_property: Record) -> None:
    with ordeal.etcd.only.frozen():
        at, died = ordeal.kill_one()
        stay(FROZEN)
    ordeal.etcd.wait_healthy()
    assert_trains_again(ordeal, at, died, record_property)


def assert_trains_again(ordeal: Ordeal, at: float, died: invariants.Event, record: Record) -> None:
    """etcd serves again: the survivors have held still, and go on soon."""
    back = time.monotonic()
    late = ordeal.hosts.gap(at) - (back - at)
    ordeal.recover(died, away=back - at)
    print(f"training {late:.2f} s after etcd's return")
    record("after return", late)
    assert late < BACK, "\n".join(run.output()[-2000:] for run in ordeal.hosts.runs)


def test_wiped(ordeal: Ordeal) -> None:
    before = ordeal.etcd.stored(PREFIX)
    with ordeal.unnoticed("the loss of its data", leases_end=True):
        ordeal.etcd.only.wipe()
        ordeal.etcd.wait_healthy()
    after = ordeal.etcd.stored(PREFIX)
    assert after["spec"].value == before["spec"].value
    assert after["plan"].value == before["plan"].value
    ordeal.replace_a_worker()
    ordeal.replicas += 1
    since = time.monotonic()
    ordeal.hosts.add("newcomer")
    ordeal.check(up_to=ordeal.hosts.wait_strength(ordeal.replicas, since, timeout=START_SECONDS))


def test_a_host_dies_while_etcd_is_down(ordeal: Ordeal, record_property: Record) -> None:
    *_, doomed = ordeal.hosts.living
    ordeal.etcd.only.kill()
    at = ordeal.hosts.kill_node(doomed)
    stay(AWAY)
    ordeal.etcd.only.start()
    ordeal.etcd.wait_healthy()
    back = time.monotonic()
    late = ordeal.hosts.gap(at) - (back - at)  # nobody tells that it is dead: it is asked, and does not answer
    print(f"training {late:.2f} s after etcd's return")
    record_property("after return", late)
    ordeal.replicas -= 1
    ordeal.check(up_to=ordeal.hosts.wait_strength(ordeal.replicas, at))
    assert late < LEASE, ordeal.hosts.generations(at)


def test_the_job_finishes(ordeal: Ordeal) -> None:
    living = ordeal.hosts.living
    last = living[0].stop_soon()
    assert [run.wait_end(60.0) for run in living] == [0] * len(living)
    ordeal.check()
    invariants.finished_alike(ordeal.hosts.events(), last, ordeal.replicas * PIPE)

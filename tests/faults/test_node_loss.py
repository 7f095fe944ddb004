"""A node dies whole: an agent and all its workers at once, three of them on one machine.

Survivors see the data-plane connections close, and the leader evicts long before the lease ends (5 s by default).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.faults.harness import START_SECONDS
from tests.faults.hosts import Hosts, several

REPLICAS = 3
LEASE = 5.0  # the default: whoever waited for it would be this late, or nearly
ENOUGH = 3.5  # on a busy machine; on a quiet one it takes half a second


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Three hosts of one replica each, at full strength."""
    with several(tmp_path, REPLICAS) as hosts:
        hosts.wait_strength(REPLICAS, timeout=START_SECONDS)
        yield hosts


def lose(hosts: Hosts, *numbers: int) -> float:
    """Lose some hosts together; the rest trains on; return the gap."""
    runs = [hosts.runs[number] for number in numbers]
    replicas = len(hosts.living) - len(runs)
    names = {worker for run in runs for worker in run.pids()}
    at = hosts.kill_node(*runs)
    gap = hosts.gap(at)
    hosts.check(hosts.wait_strength(replicas, at))
    reasons = [plan["reason"] for plan in hosts.generations(at).values()]
    assert any(name in reason for name in names for reason in reasons), reasons
    return gap


def others_than(hosts: Hosts, leader: bool) -> list[int]:
    leading = hosts.leader
    return [number for number, run in enumerate(hosts.runs) if (run is leading) == leader]


def test_a_node_dies_whole(hosts: Hosts, record_property: Callable[[str, object], None]) -> None:
    gap = lose(hosts, others_than(hosts, leader=False)[0])
    record_property("gap", gap)
    assert gap < ENOUGH
    hosts.add("again")
    hosts.wait_strength(REPLICAS, hosts.events()[-1]["t"], timeout=START_SECONDS)
    hosts.finish()


def test_the_leaders_node_dies_whole(hosts: Hosts, record_property: Callable[[str, object], None]) -> None:
    gap = lose(hosts, others_than(hosts, leader=True)[0])
    record_property("gap", gap)
    assert gap < ENOUGH
    hosts.finish()


def test_two_of_three_nodes_die_together_and_one_of_them_led(hosts: Hosts) -> None:
    leader, other = others_than(hosts, leader=True)[0], others_than(hosts, leader=False)[0]
    gap = lose(hosts, leader, other)
    assert gap < ENOUGH
    assert len(hosts.generations(0)) < 20
    hosts.finish()

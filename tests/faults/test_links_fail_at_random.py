"""Any links fail at any time, several at once and etcd's too: the job may stand still, but it loses nothing.

When all are well again it is soon back at full strength.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.harness import START_SECONDS
from tests.faults.network import Network, NetworkedHosts, networked

REPLICAS = 3
OPTIONS = ["--detect=1", "--lease=2", "--connect=2"]
SECONDS = 45.0
AT_ONCE = 3
PAUSES = (0.1, 0.5, 1.0, 2.0, 4.0)
RECOVERY = 60.0  # the longest rest of one that was put out, again and again, and a busy machine

Undo = Callable[[], None]


class Links:
    """Breaks and mends links at random."""

    def __init__(self, network: Network, seed: int) -> None:
        self._network, self._random = network, random.Random(seed)
        self._broken: dict[tuple[str, ...], Undo] = {}

    def turn(self) -> float:
        """Break or mend one; return for how long to leave it at that."""
        if self._broken and self._random.random() < 0.5:
            self._broken.pop(self._random.choice(list(self._broken)))()
        elif len(self._broken) < AT_ONCE:
            self._break()
        return self._random.choice(PAUSES)

    def _break(self) -> None:
        network, names = self._network, sorted(self._network.machines)
        one, other = sorted(self._random.sample(names, 2))
        if self._random.random() < 0.4:
            if (one,) not in self._broken:
                network.unplug(one)
                self._broken[one,] = lambda: network.plug(one)
        elif (one, other) not in self._broken:
            network.cut(one, other)
            self._broken[one, other] = lambda: network.heal(one, other)

    def mend_all(self) -> None:
        while self._broken:
            self._broken.popitem()[1]()


def wait_until(hosts: NetworkedHosts, moment: float) -> None:
    hosts.runs[0].wait(lambda: time.monotonic() >= moment, moment - time.monotonic() + 1.0, "time to pass")


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(1, 6))
def test_links_fail_at_random(tmp_path: Path, seed: int) -> None:
    with networked(tmp_path, REPLICAS, options=OPTIONS) as hosts:
        hosts.wait_strength(REPLICAS, timeout=START_SECONDS)
        links, end = Links(hosts.network, seed), time.monotonic() + SECONDS
        while (now := time.monotonic()) < end:
            wait_until(hosts, now + links.turn())
        links.mend_all()

        def full() -> bool:
            newest = max(hosts.of("plan"), key=lambda event: event["generation"])
            runs = {e["run"] for e in hosts.of("committed") if e["version"][0] == newest["generation"]}
            return newest["replicas"] == REPLICAS and len(runs) == REPLICAS

        hosts.wait(full, RECOVERY, "full strength")
        step = hosts.runs[0].step + 3
        for run in hosts.runs:
            run.wait_step(step)
        hosts.check(step - 3)

"""The only host with the job's state cannot reach etcd: it trains on, and nobody gives the job up.

The other host, which has nothing but spares, or has just been started, leads then, hears nothing of the state, and
says so.
"""

from __future__ import annotations

import time
from pathlib import Path

from tests.faults.harness import START_SECONDS
from tests.faults.network import networked

DETECT, LEASE = 1.0, 2.0
OPTIONS = [f"--detect={DETECT}", f"--lease={LEASE}"]


def test_the_last_holder_is_cut_off_from_etcd_and_comes_back(tmp_path: Path) -> None:
    with networked(tmp_path, 2, replicas="1", options=OPTIONS) as hosts:
        hosts.wait_strength(1, timeout=START_SECONDS)
        (holder,) = (run for run in hosts.runs if any(run.of("committed")))
        (other,) = (run for run in hosts.runs if run is not holder)
        other.wait(lambda: len(list(other.of("attached"))) == 2, START_SECONDS, "the spares")
        before = holder.pids()
        hosts.network.cut(holder.name, "etcd")
        at = time.monotonic()
        other.wait(lambda: "nothing is heard of" in other.output(), LEASE + 5.0, "it to say whom it waits for")
        other.wait(lambda: time.monotonic() > at + 2 * LEASE, 2 * LEASE, "the time that it shall be cut off")
        holder.wait_steps(3)
        assert not hosts.generations(at), "the state was given up"
        hosts.network.heal(holder.name, "etcd")
        holder.wait(lambda: "all of this agent's records are written anew" in holder.output(), 5.0, "its return")
        holder.wait_steps(3)
        assert holder.pids() == before
        assert not hosts.generations(at)
        hosts.check(holder.step - 1)


def test_a_host_that_starts_while_all_others_are_cut_off_from_etcd_does_not_begin_the_job_anew(tmp_path: Path) -> None:
    with networked(tmp_path, 1, replicas="1", options=OPTIONS) as hosts:
        hosts.wait_strength(1, timeout=START_SECONDS)
        (holder,) = hosts.runs
        before, generation = holder.pids(), holder.generation
        hosts.network.cut(holder.name, "etcd")
        at = time.monotonic()
        holder.wait(lambda: time.monotonic() > at + 2 * LEASE, 2 * LEASE + 1.0, "the end of its lease")
        other = hosts.add()
        other.wait(lambda: "nothing is heard of" in other.output(), START_SECONDS, "it to say whom it waits for")
        assert "cut off from the store" in other.output()
        other.wait(lambda: len(list(other.of("attached"))) == 2, START_SECONDS, "the spares")
        holder.wait_steps(3)
        assert hosts.generations(at).keys() <= {generation}
        hosts.network.heal(holder.name, "etcd")
        holder.wait(lambda: "all of this agent's records are written anew" in holder.output(), 5.0, "its return")
        holder.wait_steps(3)
        assert holder.pids() == before
        assert hosts.generations(at).keys() <= {generation}
        hosts.check(holder.step - 1)

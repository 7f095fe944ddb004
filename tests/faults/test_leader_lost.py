"""The leader's agent dies together with somebody else's worker, and the next leader dies while it plans."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.faults.harness import START_SECONDS, JobRun
from tests.faults.hosts import Hosts, several

ENOUGH = 3.5  # seconds: less than the lease that a slower way would wait for


def kill_agent(run: JobRun) -> None:
    """The agent alone: its workers live on."""
    os.kill(run.pid, signal.SIGKILL)
    run.reap()


def one_plan_each(hosts: Hosts) -> None:
    """No generation was published twice (`check` compares what each agent saw), and all of them were seen in order."""
    seen: dict[int, set[str]] = {}
    for event in hosts.of("plan"):
        seen.setdefault(event["generation"], set()).add(event["reason"])
    assert all(len(reasons) == 1 for reasons in seen.values()), seen


def test_the_leaders_agent_and_another_worker_die_together(tmp_path: Path) -> None:
    with several(tmp_path, 3) as hosts:
        hosts.wait_strength(3, timeout=START_SECONDS)
        leader = hosts.leader
        other = next(run for run in hosts.runs if run is not leader)
        at = time.monotonic()
        kill_agent(leader)
        other.kill(f"{other.name}-1")
        assert hosts.gap(at) < ENOUGH
        hosts.check(hosts.wait_strength(2, at))
        one_plan_each(hosts)
        hosts.finish()


def test_the_next_leader_dies_while_it_plans(tmp_path: Path) -> None:
    with several(tmp_path, 4, replicas="1:4") as hosts:
        hosts.wait_strength(4, timeout=START_SECONDS)
        first = hosts.leader
        at = hosts.kill_node(first)
        # the one that says that it leads now has a plan to make: the first node's loss
        second = hosts.wait(
            lambda: next((r for r in hosts.living if "leads the job (revision" in r.output()), None), 10.0, "a leader"
        )
        hosts.kill_node(second)
        hosts.check(hosts.wait_strength(2, at))
        one_plan_each(hosts)
        hosts.finish()

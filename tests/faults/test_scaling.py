"""`reknit scale` on a job that trains: nobody tries a step again.  How quick it is, `make bench` measures.

One job for all of it.  Its agents allow 1 to 4 replicas; an operator has asked for 2 before they come.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.harness import START_SECONDS, Event
from tests.faults.hosts import JOB, Hosts, scalable

from reknit.rendezvous.codec import decode_spec
from reknit.rendezvous.history import HistoryRecord, read_all
from reknit.rendezvous.keys import Keys
from reknit.rendezvous.rejected import Rejected
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.runtime.operating.scale import scale

KEYS = Keys(JOB)
ENOUGH = 10.0  # seconds from the operator's word to a step at the new size, on a busy machine; else a fraction of one
BEYOND = 3  # steps at each size
SIZES = (4, 1, 4)  # the first spares have never had a place, the second ones have


@contextmanager
def asked_for_two(folder: Path) -> Iterator[tuple[Hosts, EtcdStore]]:
    """A job that shall have 2 replicas, and has them, and two spares."""
    with scalable(folder) as (hosts, store):
        hosts.wait(lambda: spares(hosts) == 2, START_SECONDS, "the spares to come")
        yield hosts, store


def spares(hosts: Hosts) -> int:
    """Workers that have attached and have no place."""
    return len({e["worker"] for e in hosts.of("attached")} - {e["worker"] for e in hosts.of("placed")})


def first_step(hosts: Hosts, size: int, since: float) -> float:
    """Seconds from `since` to the first step with so many replicas; waits until a few more are made."""

    def steps() -> list[Event]:
        full = {e["generation"] for e in hosts.of("plan", since) if e["replicas"] == size}
        return [e for e in hosts.of("committed", since) if e["version"][0] in full]

    def enough() -> bool:
        return len({e["step"] for e in steps()}) > BEYOND

    hosts.wait(enough, 20.0, f"steps with {size} replicas")
    return float(steps()[0]["t"]) - since


def nothing_was_lost(hosts: Hosts, since: float) -> None:
    for kind in ("retried", "worker_died", "restart"):
        assert not list(hosts.of(kind, since)), kind
    assert not [plan for plan in hosts.generations(since).values() if plan["urgent"]]


def command(hosts: Hosts, *arguments: str) -> str:
    """A command of ours, as a user runs it; what it prints."""
    line = [sys.executable, "-m", "reknit.runtime.cli", *arguments, "--etcd", hosts.etcd]
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def history(store: EtcdStore) -> list[HistoryRecord]:
    return list(read_all(store.list(KEYS.histories).entries, Rejected(logging.getLogger("test"))))


def test_scaling_under_load_loses_nothing(tmp_path: Path) -> None:
    with asked_for_two(tmp_path) as (hosts, store):
        begun = time.monotonic()
        assert max(plan["replicas"] for plan in hosts.generations(0.0).values()) == 2, "no agent's flags overwrite it"
        pids, took = [run.pids() for run in hosts.runs], []
        for size in SIZES:
            at = time.monotonic()
            scale(store, KEYS, size)
            took.append(first_step(hosts, size, at))
        nothing_was_lost(hosts, begun)
        print("seconds from the word to the first step, 2 -> 4 -> 1 -> 4:", [round(seconds, 3) for seconds in took])
        assert max(took) <= ENOUGH, took
        assert [run.pids() for run in hosts.runs] == pids

        at = time.monotonic()
        said = command(hosts, "scale", "3", "--job", JOB, "--wait", "20s").splitlines()
        assert said[0] == f"{JOB}: 3 replicas are wanted (was 4); 4 are running"
        assert said[1].startswith(f"{JOB}: 3 in generation")
        first_step(hosts, 3, at)
        nothing_was_lost(hosts, begun)

        records = history(store)
        told = command(hosts, "events", "--job", JOB, "--json").splitlines()
        assert [json.loads(line)["generation"] for line in told] == [record.generation for record in records]
        scaled = [record for record in records if record.kind == "scale"]
        assert [record.replicas for record in scaled] == [*SIZES, 3]
        assert all(record.gap is not None and record.gap <= ENOUGH for record in scaled[:-1]), scaled

        hosts.finish()
        left = {entry.key.removeprefix(KEYS.prefix): entry.lease for entry in store.list("").entries}
        assert {key.partition("/")[0] for key in left} == {"spec", "plan", "plans", "history"}
        assert len(set(left.values()) - {0}) == 1
        assert 0 not in left.values(), "all that is left expires"
        entry = store.get(KEYS.spec)
        assert entry is not None
        assert decode_spec(entry.value).desired == 3
        assert " finished " in command(hosts, "jobs")

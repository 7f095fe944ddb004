"""Leaving on request: nothing is lost, nobody tries a step again; and what becomes of whoever cannot leave in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, TRAIN_DATA, TRAIN_PIPE, JobRun
from tests.faults.hosts import JOB, Hosts, several

from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.runtime.checkpoint.files import complete_steps
from reknit.runtime.config import EXIT_AGAIN

REPLICAS = 3


@contextmanager
def stages(folder: Path, *options: str, workers: int = 2, hosts: int = REPLICAS) -> Iterator[Hosts]:
    """Hosts whose workers are two stages each, at full strength."""
    replicas = f"1:{hosts * workers // 2}"
    with several(folder, hosts, replicas=replicas, workers=workers, options=options) as running:
        running.wait_strength(hosts * workers // 2, timeout=START_SECONDS)
        yield running


@contextmanager
def replicas(folder: Path, *options: str, hosts: int = 2, workers: int = 1) -> Iterator[Hosts]:
    """Hosts whose workers are a replica each, at full strength."""
    most = hosts * workers
    shape: dict[str, Any] = {"script": TRAIN_DATA, "replicas": f"1:{most}", "pipe": 1, "workers": workers}
    with several(folder, hosts, options=options, **shape) as running:
        running.wait_strength(most, timeout=START_SECONDS)
        yield running


def now(hosts: Hosts) -> float:
    return float(hosts.events()[-1]["t"])


def trained(hosts: Hosts, replicas: int, since: float, timeout: float = 20.0) -> None:
    """Wait for a step with so many replicas; who waits in the pool makes none."""

    def reached() -> bool:
        full = {e["generation"] for e in hosts.of("plan", since) if e["replicas"] == replicas}
        return any(e["version"][0] in full for e in hosts.of("committed", since))

    hosts.wait(reached, timeout, f"a step with {replicas} replicas")


def left_in_order(hosts: Hosts, since: float, *workers: str) -> None:
    """These have drained, nobody else has; nobody died, tried a step again, or was interrupted."""
    assert sorted(event["worker"] for event in hosts.of("draining", since)) == sorted(workers)

    def drained() -> bool:
        return sorted(event["worker"] for event in hosts.of("drained", since)) == sorted(workers)

    hosts.wait(drained, 15.0, f"the ends of {workers}")
    for kind in ("retried", "worker_died", "restart", "healed"):
        assert not list(hosts.of(kind, since)), kind
    assert not [plan for plan in hosts.generations(since).values() if plan["urgent"]]


def last_reason(run: JobRun) -> str:
    (ended,) = run.of("agent_ended")
    return str(ended["reason"])


def drain(hosts: Hosts, target: str, *options: str) -> subprocess.Popen[str]:
    """`reknit drain`, as a user runs it."""
    command = [sys.executable, "-m", "reknit.runtime.cli", "drain", target, "--etcd", hosts.etcd, "--job", JOB]
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_an_agent_drains_by_sigterm_then_one_that_leads_by_a_chosen_signal(tmp_path: Path) -> None:
    with stages(tmp_path, "--drain-signal", "USR1") as hosts:
        other = next(run for run in hosts.runs if run is not hosts.leader)
        at, pids = now(hosts), {run.name: run.pids() for run in hosts.runs}
        os.kill(other.pid, signal.SIGTERM)
        assert other.wait_end() == 0
        assert last_reason(other) == "all workers here have drained"
        hosts.check(hosts.wait_strength(REPLICAS - 1, at))
        left_in_order(hosts, at, f"{other.name}-0", f"{other.name}-1")
        assert len(hosts.generations(at)) == 1, "no generation is spent on their end"

        leader = hosts.leader
        at = now(hosts)
        os.kill(leader.pid, signal.SIGUSR1)
        assert leader.wait_end() == 0
        hosts.check(hosts.wait_strength(REPLICAS - 2, at))
        left_in_order(hosts, at, f"{leader.name}-0", f"{leader.name}-1")
        (last,) = hosts.living
        assert last.pids() == pids[last.name]
        hosts.finish()


def test_a_signal_to_a_worker_drains_it_and_its_mate_is_used_again(tmp_path: Path) -> None:
    with stages(tmp_path, "--drain-signal", "SIGUSR1", hosts=2) as hosts:
        second = hosts.runs[1]
        at, mate = now(hosts), "host1-0"
        pid = second.pids()["host1-1"]
        os.kill(pid, signal.SIGUSR1)
        drained = second.wait_event("drained", worker="host1-1")
        assert drained["pid"] == pid
        trained(hosts, 1, at)
        left_in_order(hosts, at, "host1-1")
        assert second.returncode() is None, "it has another worker, which waits in the pool"

        hosts.workers = 1
        hosts.add()
        trained(hosts, 2, now(hosts), START_SECONDS)
        newest = hosts.generations(at).keys()
        assert any(event["worker"] == mate for event in second.of("placed", generation=max(newest)))
        hosts.finish()


def test_a_command_drains_a_worker_then_a_replica_then_a_host(tmp_path: Path) -> None:
    with replicas(tmp_path, hosts=2, workers=2) as hosts:
        at = now(hosts)
        asked = drain(hosts, "host0-0")
        said, _ = asked.communicate(timeout=30)
        assert asked.returncode == 0, said
        assert "host0-0 has left" in said
        hosts.wait_strength(3, at)
        left_in_order(hosts, at, "host0-0")

        slot = next(e for e in reversed(hosts.events()) if e["event"] == "placed" and e["worker"] == "host0-1")
        at = now(hosts)
        asked = drain(hosts, f"replica/{slot['replica']}", "--deadline", "60s")
        said, _ = asked.communicate(timeout=30)
        assert (asked.returncode, "host0-1 has left" in said) == (0, True), said
        assert hosts.runs[0].wait_end() == 0, "all its workers have left"
        hosts.wait_strength(2, at)
        left_in_order(hosts, at, "host0-1")

        hosts.add("host2")
        hosts.wait_strength(4, at, START_SECONDS)
        at = now(hosts)
        asked = drain(hosts, "host1")
        said, _ = asked.communicate(timeout=30)
        assert asked.returncode == 0, said
        assert hosts.runs[1].wait_end() == 0
        hosts.wait_strength(2, at)
        left_in_order(hosts, at, "host1-0", "host1-1")

        asked = drain(hosts, "nobody")
        said, _ = asked.communicate(timeout=30)
        assert asked.returncode == 1
        assert "has no nobody" in said
        hosts.finish()


def test_the_only_replica_stays_until_the_deadline_and_is_a_loss_then(tmp_path: Path) -> None:
    with replicas(tmp_path, "--drain-deadline", "3", hosts=1) as hosts:
        (run,) = hosts.runs
        step, since = run.step, len(run.poll())
        os.kill(run.pid, signal.SIGTERM)
        draining = run.wait_event("draining", since=since)
        run.wait_steps()
        assert run.step > step, "it trains on meanwhile"
        died = run.wait(lambda: next(run.of("worker_died", since), None), 15.0, "its end", ending=True)
        assert died["cause"] == "the drain's deadline passed"
        assert 3.0 <= died["t"] - draining["t"] < 6.0
        assert run.wait_end() == 128 + signal.SIGTERM
        assert "nobody else holds the state of its coordinate" in run.output()


def test_when_all_hosts_drain_at_once_the_job_stops_at_a_checkpoint_and_goes_on_from_there_later(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "checkpoints"
    with EmbeddedEtcd() as etcd:
        before = 0
        for life in ("first", "second"):
            (tmp_path / life).mkdir()
            hosts = Hosts(
                tmp_path / life,
                etcd.endpoint,
                arguments=("--checkpoint", str(folder), "--every", "100000"),  # none but the last one
            )
            try:
                for number in range(2):
                    hosts.add(f"{life}-{number}")
                hosts.wait_strength(2, timeout=START_SECONDS)
                assert min(event["step"] for event in hosts.of("committed")) == before + 1, "no step is made twice"
                at = now(hosts)
                for run in hosts.runs:
                    os.kill(run.pid, signal.SIGTERM)
                ended = [run.wait_end(20.0) for run in hosts.runs]
                assert ended == [EXIT_AGAIN, EXIT_AGAIN]
                assert len(list(hosts.of("drained", at))) == 4
                costs = [
                    e for e in hosts.events() if e["t"] > at and e["event"] in ("retried", "worker_died", "healed")
                ]
                assert not costs
                newest = max(event["step"] for event in hosts.of("committed"))
                assert complete_steps(folder)[0] == newest > before
                invariants.check(hosts.events(), problem.samples_of, after=before)
                before = newest
            finally:
                hosts.close()


def test_a_standalone_job_that_keeps_checkpoints_stops_at_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    arguments = ("--checkpoint", str(folder), "--every", "100000")
    with JobRun(tmp_path, TRAIN_PIPE, arguments, replicas="2", pipe=2) as run:
        run.wait_strength(2, timeout=START_SECONDS)
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait_end(20.0) == EXIT_AGAIN
        newest = max(event["step"] for event in run.of("committed"))
        assert complete_steps(folder) == [newest]
        assert f"its state is in the checkpoint of step {newest}; start the job again to go on" in run.output()


def test_a_second_sigterm_stops_at_once(tmp_path: Path) -> None:
    with replicas(tmp_path, hosts=1) as hosts:
        (run,) = hosts.runs
        os.kill(run.pid, signal.SIGTERM)
        first = run.wait_event("draining")["t"]
        run.wait(
            lambda: time.monotonic() > first + 1.1, 5.0, "the time in which a second SIGTERM is the first one's echo"
        )
        at = now(hosts)
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait_end() == 128 + signal.SIGTERM
        (ended,) = run.of("agent_ended")
        assert ended["t"] - at < 5.0


def test_who_hangs_as_it_drains_is_ended_at_the_deadline_and_the_others_go_on(tmp_path: Path) -> None:
    with replicas(tmp_path, hosts=2) as hosts:
        at = now(hosts)
        os.kill(hosts.runs[1].pids()["host1-0"], signal.SIGSTOP)
        asked = drain(hosts, "host1-0", "--deadline", "2s")
        said, _ = asked.communicate(timeout=30)
        assert asked.returncode == 1, said
        assert "host1-0 was lost before it could leave" in said
        (died,) = hosts.of("worker_died", at)
        assert died["cause"] == "the drain's deadline passed"
        assert hosts.runs[1].wait_end() == 128 + signal.SIGTERM
        hosts.wait(
            lambda: any(hosts.of("committed", died["t"])), 20.0, "a step without it, whatever generation that takes"
        )
        hosts.finish()


def test_two_drains_in_a_row_and_a_kill_in_the_middle_of_one(tmp_path: Path) -> None:
    with replicas(tmp_path, hosts=2, workers=3) as hosts:
        first, second = hosts.runs
        at = now(hosts)
        os.kill(first.pids()["host0-0"], signal.SIGTERM)
        os.kill(first.pids()["host0-1"], signal.SIGTERM)
        for worker in ("host0-0", "host0-1"):
            first.wait_event("drained", worker=worker)
        hosts.wait_strength(4, at)
        left_in_order(hosts, at, "host0-0", "host0-1")

        at = now(hosts)
        fault = second.fail_at("host1-1", "connect")
        os.kill(first.pids()["host0-2"], signal.SIGTERM)
        died = second.wait_event("worker_died", worker="host1-1")
        assert not fault.exists()
        assert died["cause"] == "SIGKILL"
        first.wait(lambda: any(first.of("drained", worker="host0-2")), 15.0, "host0-2 to leave", ending=True)
        assert first.wait_end() == 0
        hosts.wait_strength(3, died["t"])
        assert {event["worker"] for event in hosts.of("worker_died", at)} == {"host1-1"}
        hosts.finish()


def test_a_drained_stage_is_replaced_by_a_spare_and_whoever_dies_as_it_takes_over_costs_nothing_committed(
    tmp_path: Path,
) -> None:
    with stages(tmp_path, hosts=2) as hosts:
        second = hosts.runs[1]
        spares = hosts.add("spares")
        spares.wait(lambda: len(spares.pids()) == 2, START_SECONDS, "the spares to come")
        at = now(hosts)
        second.fail_at("spares-0", "be healed", 0)
        second.fail_at("spares-1", "be healed", 0)
        os.kill(second.pids()["host1-1"], signal.SIGTERM)
        second.wait_event("drained", 30.0, worker="host1-1")
        hosts.wait_strength(2, at, 30.0)
        assert {event["worker"] for event in hosts.of("worker_died", at)} <= {"spares-0", "spares-1"}
        hosts.finish()


def test_in_a_standalone_job_sigterm_stops_and_the_drain_signal_does_nothing(tmp_path: Path) -> None:
    options = ("--standalone", "--drain-signal", "USR2")
    with JobRun(tmp_path, TRAIN_PIPE, replicas="1", pipe=2, options=options) as run:
        run.wait_strength(1, timeout=START_SECONDS)
        os.kill(run.pid, signal.SIGUSR2)
        run.wait(lambda: "SIGUSR2 is ignored" in run.output(), 10.0, "a word on the signal")
        run.wait_steps()
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait_end() == 128 + signal.SIGTERM
        assert not list(run.of("draining"))

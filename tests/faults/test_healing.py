"""Healing goes on where it stopped when a source dies, and finds, names and heals what no fault announced."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.faults.campaign import Shape, campaign_of
from tests.faults.harness import SCRIPTS, JobRun

LARGE = SCRIPTS / "train_large.py"
BALLAST_BYTES = 12 * 2**22
TIMEOUT = 40.0  # a busy machine


def flip(run: JobRun, worker: str) -> int:
    """Let a bit of a worker's parameters flip; returns the position in the events before that."""
    since = len(run.poll())
    (run.orders / f"{worker}.flip").touch()
    return since


def test_a_source_killed_midway_and_the_rest_comes_from_the_others(tmp_path: Path) -> None:
    with campaign_of(tmp_path, Shape(LARGE, 4, 1)) as campaign:
        run, worker = campaign.run, campaign.victim(0)
        since = len(run.poll())
        # The newcomer stands still with half of the state until a source is dead.
        fault = run.fail_at(worker, "be healed halfway", 1, signal.SIGSTOP)
        run.kill(worker)
        run.wait(lambda: not fault.exists(), TIMEOUT, "half of the state")
        source = next(name for name in sorted(run.pids()) if name != worker)
        run.kill(source)
        run.wait_event("worker_died", TIMEOUT, since, worker=source)
        run.kill(worker, signal.SIGCONT)
        whole = run.wait_strength(4, since, TIMEOUT)
        died = [event["worker"] for event in run.of("worker_died", since)]
        assert died == [worker, source]
        healed = next(event for event in run.of("healed", since, worker=worker) if event["step"] <= whole["step"])
        assert healed["kept"] >= 0.45 * BALLAST_BYTES
        assert BALLAST_BYTES < healed["kept"] + healed["bytes"] < BALLAST_BYTES * 1.1
        assert source not in healed["sources"]
        assert healed["damaged"] == []
        anew = next(run.of("healed", since, worker=source))
        assert anew["kept"] == 0
        campaign.finish(waits=TIMEOUT)


@pytest.mark.parametrize("policy", ["heal", "evict"])
def test_a_flipped_bit_is_found_and_named(policy: str, tmp_path: Path) -> None:
    with campaign_of(tmp_path, Shape(LARGE, 3, 1), "--verify-every", "1", "--verify-policy", policy) as campaign:
        run = campaign.run
        before, worker = run.pids(), sorted(run.pids())[1]
        since = flip(run, worker)
        differs = run.wait_event("differs", TIMEOUT, since)
        assert (differs["worker"], differs["action"], differs["coordinate"]) == (worker, policy, 0)
        healed = run.wait_event("healed", TIMEOUT, since)
        assert healed["worker"] == worker
        assert healed["step"] == differs["step"] or policy == "evict", "the others wait for nobody who starts afresh"
        assert len(healed["sources"]) == 2
        run.wait_steps(5, TIMEOUT)
        died = [(event["worker"], event["cause"]) for event in run.of("worker_died", since)]
        if policy == "heal":
            assert not died
        else:  # it ends by itself, or its agent, which reads the same plan, is faster
            assert died in ([(worker, "exit code 75")], [(worker, "SIGKILL")])
        assert {name for name, pid in run.pids().items() if pid != before[name]} == {name for name, _ in died}
        assert len(list(run.of("differs"))) == 1
        assert f"ERROR: the state of {worker} differs" in run.output()
        campaign.finish(waits=TIMEOUT)  # no step was committed anywhere on top of a state that differed


def test_without_a_majority_it_is_said_and_nobody_is_healed(tmp_path: Path) -> None:
    with campaign_of(tmp_path, Shape(LARGE, 2, 1), "--verify-every", "3") as campaign:
        run = campaign.run
        since = flip(run, sorted(run.pids())[1])
        first = run.wait_event("differs", TIMEOUT, since)
        run.wait_event("differs", TIMEOUT, since, step=first["step"] + 3)
        told = list(run.of("differs", since, step=first["step"]))
        assert {(event["worker"], event["action"]) for event in told} == {(name, "none") for name in run.pids()}
        assert run.output().count("no majority says which is right") >= 1
        assert not list(run.of("healed", since))
        assert not list(run.of("worker_died"))

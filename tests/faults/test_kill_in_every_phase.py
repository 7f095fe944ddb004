"""A worker is SIGKILLed in each phase of a step and of a reinit, from within, and nothing is lost.

One job for each shape goes through all phases, one after the other, each from full strength to full strength.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.faults import invariants, problem
from tests.faults.fail_at import ANY, PHASES
from tests.faults.harness import START_SECONDS, TRAIN_DATA, TRAIN_PIPE, Event, JobRun

IN_A_STEP = tuple(phase for phase in PHASES if phase not in ("heal", "be healed"))
HARDLY_ANY = 1e-3  # relative difference: replicas sum in another order than one process does


class Shape(NamedTuple):
    """A job: its script, how many replicas, how many stages."""

    script: Path
    replicas: int
    pipe: int

    @property
    def workers(self) -> int:
        return self.replicas * self.pipe

    def __str__(self) -> str:
        return f"{self.replicas}x{self.pipe}"


DATA, PIPE = Shape(TRAIN_DATA, 3, 1), Shape(TRAIN_PIPE, 2, 2)


class Campaign:
    """One job that is hit again and again."""

    def __init__(self, run: JobRun, shape: Shape) -> None:
        self.run, self.shape = run, shape

    def victim(self, coordinate: int) -> str:
        """The worker at a coordinate that has lived longest: who dies often in a row is restarted late."""
        self.run.poll()
        there = [worker for worker, place in self.run.coordinates().items() if place == coordinate]
        started = {event["worker"]: event["t"] for event in self.run.of("attached")}
        return min(there, key=lambda worker: started[worker])

    def strike(self, worker: str, phase: str) -> None:
        """`worker` dies at `phase`, and the job recovers."""
        since = len(self.run.poll())
        fault = self.run.fail_at(worker, phase)
        died = self.run.wait_event("worker_died", since=since, worker=worker)
        assert died["cause"] == "SIGKILL"
        assert not fault.exists()
        self.recover(self.run.events.index(died))

    def recover(self, since: int) -> None:
        """Wait until the job is at full strength again, and three steps more; all invariants hold."""
        whole = self.run.wait_strength(self.shape.replicas, since)
        self.run.wait_step(whole["step"] + 3)
        invariants.check(self.run.events, problem.samples_of, up_to=whole["step"])


def second_death(run: JobRun, since: int, **fields: Any) -> Event:
    def second() -> Event | None:
        return next(itertools.islice(run.of("worker_died", since, **fields), 1, None), None)

    died: Event = run.wait(second, 20.0, "a second death")
    return died


@pytest.fixture(scope="module", params=[DATA, PIPE], ids=str)
def campaign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """A running job of each shape."""
    shape = request.param
    run = JobRun(
        tmp_path_factory.mktemp(str(shape)),
        shape.script,
        replicas=str(shape.replicas),
        pipe=shape.pipe,
        options=("--standalone", "--backoff", "0"),  # nobody here dies of a fault of its own
    )
    with run:
        run.wait_strength(shape.replicas, timeout=START_SECONDS)
        yield Campaign(run, shape)


@pytest.mark.parametrize("phase", IN_A_STEP)
def test_killed_in(phase: str, campaign: Campaign) -> None:
    for coordinate in range(campaign.shape.pipe):
        campaign.strike(campaign.victim(coordinate), phase)


def test_a_newcomer_killed_while_it_is_healed(campaign: Campaign) -> None:
    run = campaign.run
    for coordinate in range(campaign.shape.pipe):
        worker = campaign.victim(coordinate)
        since = len(run.poll())
        fault = run.fail_at(worker, "be healed", 0)
        run.kill(worker)
        died = second_death(run, since, worker=worker)
        assert not fault.exists()
        assert not list(run.of("healed", since, worker=worker))
        campaign.recover(run.events.index(died))
        assert list(run.of("healed", since, worker=worker))


# With two replicas the source would hold the only copy, and the state would be lost with it.
@pytest.mark.parametrize("campaign", [DATA], ids=str, indirect=True)
def test_a_source_killed_while_it_heals(campaign: Campaign) -> None:
    run, worker = campaign.run, campaign.victim(0)
    since = len(run.poll())
    fault = run.fail_at(ANY, "heal", 0)
    run.kill(worker)
    died = second_death(run, since)
    assert died["worker"] != worker
    assert not fault.exists()
    campaign.recover(run.events.index(died))
    assert len(list(run.of("worker_died", since))) == 2


def test_the_battered_job_finishes(campaign: Campaign) -> None:
    run = campaign.run
    last = run.stop_soon()
    assert run.wait_end() == 0
    invariants.check(run.events, problem.samples_of)
    invariants.finished_alike(run.events, last, campaign.shape.workers)
    losses = invariants.losses(run.events)
    assert len(losses) > 0.9 * last
    for step, expected in zip(range(1, last + 1), problem.reference_losses(), strict=False):
        if step in losses:
            assert losses[step] == pytest.approx(expected, rel=HARDLY_ANY), f"one process differs at step {step}"

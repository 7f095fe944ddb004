"""A worker is SIGKILLed in each phase of a step and of a reinit, from within, and nothing is lost.

One job for each shape goes through all phases, one after the other, each from full strength to full strength.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.faults import invariants, problem
from tests.faults.campaign import DATA, PIPE, Campaign, campaign_of
from tests.faults.fail_at import ANY, PHASES
from tests.faults.harness import Event, JobRun

COMPARED = 500  # steps: on a busy machine the job makes thousands while it waits for newcomers
HARDLY_ANY = 1e-3  # relative difference: replicas sum in another order than one process does


def second_death(run: JobRun, since: int, **fields: Any) -> Event:
    def second() -> Event | None:
        return next(itertools.islice(run.of("worker_died", since, **fields), 1, None), None)

    died: Event = run.wait(second, 20.0, "a second death")
    return died


@pytest.fixture(scope="module", params=[DATA, PIPE], ids=str)
def campaign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """A running job of each shape."""
    with campaign_of(tmp_path_factory.mktemp(str(request.param)), request.param) as campaign:
        yield campaign


@pytest.mark.parametrize("phase", PHASES)
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
    last = campaign.finish()
    losses = invariants.losses(run.events)
    assert len(losses) > 0.9 * last
    for step, expected in zip(range(1, min(last, COMPARED) + 1), problem.reference_losses(), strict=False):
        if step in losses:
            assert losses[step] == pytest.approx(expected, rel=HARDLY_ANY), f"one process differs at step {step}"

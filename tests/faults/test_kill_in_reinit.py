"""A second worker dies while the job moves to the next generation: connecting, comparing, healing, becoming ready."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests.faults.campaign import Campaign, Shape, campaign_of
from tests.faults.fail_at import ANY, OF_A_REINIT
from tests.faults.harness import TRAIN_DATA, TRAIN_PIPE, Event, JobRun

DATA, PIPE = Shape(TRAIN_DATA, 4, 1), Shape(TRAIN_PIPE, 3, 2)
FREED = 2.0  # seconds, DESIGN: no blocked collective outlives the notice by more than one; on a busy machine


@pytest.fixture(scope="module", params=[DATA, PIPE], ids=str)
def campaign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """A running job of each shape."""
    with campaign_of(tmp_path_factory.mktemp(str(request.param)), request.param) as campaign:
        yield campaign


def deaths(run: JobRun, since: int, count: int, **fields: Any) -> Event:
    """The `count`th death."""

    def found() -> Event | None:
        return next(itertools.islice(run.of("worker_died", since, **fields), count - 1, None), None)

    died: Event = run.wait(found, 20.0, f"{count} deaths")
    return died


@pytest.mark.parametrize("phase", [phase for phase in OF_A_REINIT if not phase.startswith("be healed")])
def test_a_second_dies_in(phase: str, campaign: Campaign) -> None:
    """A survivor: while it connects, compares, heals a newcomer, or has just become ready."""
    run, worker = campaign.run, campaign.victim(0)
    since = len(run.poll())
    fault = run.fail_at(ANY, phase, 0)
    run.kill(worker)
    second = deaths(run, since, 2)
    assert not fault.exists()
    campaign.recover(run.events.index(second))
    nobody_blocked(run, since)


def test_the_newcomer_dies_while_it_is_healed(campaign: Campaign) -> None:
    run, worker = campaign.run, campaign.victim(campaign.shape.pipe - 1)
    since = len(run.poll())
    fault = run.fail_at(worker, "be healed", 0)
    run.kill(worker)
    second = deaths(run, since, 2, worker=worker)
    assert not fault.exists()
    campaign.recover(run.events.index(second))
    nobody_blocked(run, since)


def test_a_third_dies_while_a_newcomer_is_healed(campaign: Campaign) -> None:
    """Neither source nor receiver: it dies in the moment in which the source begins to send."""
    run, worker = campaign.run, campaign.victim(0)
    since = len(run.poll())
    third = next(name for name in sorted(run.pids()) if name != worker)
    fault = run.fail_at(third, "ready", 0)
    run.kill(worker)
    second = deaths(run, since, 1, worker=third)
    assert not fault.exists()
    campaign.recover(run.events.index(second))
    nobody_blocked(run, since)


def test_the_battered_job_finishes(campaign: Campaign) -> None:
    campaign.finish()


def nobody_blocked(run: JobRun, since: int) -> None:
    """After each death every living member is soon in a newer generation."""
    for died in run.of("worker_died", since):
        after = [event["t"] for event in run.of("reinit_done", since) if event["t"] > died["t"]]
        assert min(after) - died["t"] < FREED

"""A worker stops without dying, or loops for ever: it, and not who waits for it, is named and put out.

Who was put out rests, and longer each time: so there are spares here, which take turns.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.campaign import Campaign, Shape, campaign_of
from tests.faults.fail_at import PHASES
from tests.faults.harness import SCRIPTS, TRAIN_DATA, TRAIN_PIPE

HANG = 3.0  # seconds; 30 by default
STUCK = SCRIPTS / "train_stuck.py"
TWO, PIPE = Shape(TRAIN_DATA, 2, 1), Shape(TRAIN_PIPE, 2, 2)


@pytest.fixture(scope="module", params=[TWO, PIPE], ids=str)
def campaign(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """A running job of each shape."""
    folder = tmp_path_factory.mktemp(str(request.param))
    with campaign_of(folder, request.param, "--hang", str(HANG), "--spares", "2") as campaign:
        yield campaign


@pytest.mark.parametrize("phase", PHASES)
def test_stopped_in(phase: str, campaign: Campaign) -> None:
    coordinate = PHASES.index(phase) % campaign.shape.pipe
    campaign.stop(campaign.victim(coordinate), phase, HANG)


def test_stopped_while_a_reinit_connects(campaign: Campaign) -> None:
    """Somebody else's death makes the new generation, into which the stopped one does not come."""
    run = campaign.run
    stopped = campaign.victim(0)
    killed = next(worker for worker, at in sorted(run.coordinates().items()) if at == 0 and worker != stopped)
    if campaign.shape.replicas == 2:
        pytest.skip("with two replicas the stopped one holds the only copy")
    since = len(run.poll())
    fault = run.fail_at(stopped, "connect", number=signal.SIGSTOP)
    run.kill(killed)
    run.wait(lambda: not fault.exists(), 10.0, "the stop")
    died = run.wait_event("worker_died", 4 * HANG + 10, since, worker=stopped)
    campaign.recover(run.events.index(died))


def test_the_battered_job_finishes(campaign: Campaign) -> None:
    campaign.finish()


def test_a_script_that_loops_for_ever(tmp_path: Path) -> None:
    with campaign_of(tmp_path, Shape(STUCK, 2, 1), "--hang", str(HANG), "--spares", "1") as campaign:
        run = campaign.run
        for where in ("forward", "between"):
            worker = campaign.victim(0)
            since = len(run.poll())
            at = time.monotonic()
            (run.orders / f"{worker}.loop.{where}").write_text("now")
            died = run.wait_event("worker_died", 4 * HANG + 10, since, worker=worker)
            assert died["t"] - at >= HANG
            plan = next(run.of("plan", since))
            assert plan["reason"].startswith(worker), plan
            campaign.recover(run.events.index(plan))
        campaign.finish()

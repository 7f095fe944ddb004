"""A slow worker is named and never put out; an evaluation is excused if it is announced, or if nobody waits for it."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.campaign import Campaign, Shape, campaign_of
from tests.faults.harness import SCRIPTS

HANG = 3.0  # seconds; 30 by default, so that these are two-minute evaluations and more
LONG = 3 * HANG
STRAGGLER = 20.0  # seconds until one is named: it has to be slow for five of them, and for some steps
SHAPE = Shape(SCRIPTS / "train_stuck.py", 2, 1)


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Campaign]:
    """A running job."""
    with campaign_of(tmp_path_factory.mktemp("slow"), SHAPE, "--hang", str(HANG)) as campaign:
        yield campaign


def order(campaign: Campaign, worker: str, what: str, seconds: float | str) -> int:
    """Tell a worker what to do next, or at a step; return the position in the events before it."""
    since = len(campaign.run.poll())
    new = campaign.run.orders / f"{worker}.new"
    new.write_text(str(seconds))
    new.rename(campaign.run.orders / f"{worker}.{what}")
    return since


def nothing_passed(campaign: Campaign, since: int) -> None:
    """No generation, no death; and the job trains on."""
    campaign.run.wait_steps(10)
    assert not list(campaign.run.of("plan", since))
    assert not list(campaign.run.of("worker_died", since))
    campaign.check()


def test_a_slow_one_is_named_and_left(campaign: Campaign) -> None:
    worker = campaign.victim(0)
    since = order(campaign, worker, "slow", HANG / 2)
    named = campaign.run.wait_event("verdict", 6 * HANG, since, worker=worker)
    assert named["verdict"] == "slow"
    (campaign.run.orders / f"{worker}.slow").unlink()
    nothing_passed(campaign, since)


def test_a_straggler_is_named_by_how_much_it_is_slower_until_it_keeps_up(campaign: Campaign) -> None:
    run, worker = campaign.run, campaign.victim(0)
    since, said = order(campaign, worker, "slow", 0.1), len(run.output())
    run.wait(lambda: f"{worker} is a straggler: for " in run.output()[said:], STRAGGLER, "its name")
    ratios = slowdowns(campaign)
    assert ratios.pop(worker) > 2, "a step takes some milliseconds, and 100 more there"
    assert set(ratios.values()) == {1.0}
    (run.orders / f"{worker}.slow").unlink()
    run.wait(lambda: f"{worker} is no straggler any more" in run.output()[said:], STRAGGLER, "its end")
    assert run.output()[said:].count("straggler") == 2
    nothing_passed(campaign, since)


def slowdowns(campaign: Campaign) -> dict[str, float]:
    """What the agent exports of each worker."""
    (started,) = campaign.run.of("agent_started")
    with urllib.request.urlopen(f"http://{started['http']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = (line for line in lines if line.startswith("reknit_worker_slowdown_ratio{"))
    return {line.split('worker="')[1].split('"')[0]: float(line.split()[-1]) for line in found}


@pytest.mark.parametrize("where", ["between", "forward"])
def test_an_announced_evaluation_is_excused(where: str, campaign: Campaign) -> None:
    worker, at = campaign.victim(0), time.monotonic()
    since = order(campaign, worker, f"long.{where}", LONG)
    campaign.run.wait_steps(10, timeout=LONG + 15)
    campaign.run.wait(lambda: time.monotonic() > at + LONG, LONG, "the end of the evaluation")
    nothing_passed(campaign, since)


def test_an_evaluation_of_all_need_not_be_announced(campaign: Campaign) -> None:
    run, soon = campaign.run, f"{LONG} {campaign.run.step + 100}"
    since = min(order(campaign, worker, "sleep.between", soon) for worker in sorted(run.pids()))
    run.wait(lambda: not list(run.orders.glob("*.sleep.between")), 30.0, "all of them to evaluate")
    run.wait_steps(30, timeout=LONG + 15)
    nothing_passed(campaign, since)


def test_one_that_is_not_announced_is_put_out(campaign: Campaign) -> None:
    worker = campaign.victim(0)
    since = order(campaign, worker, "sleep.between", 10 * HANG)
    died = campaign.run.wait_event("worker_died", 4 * HANG + 10, since, worker=worker)
    assert next(campaign.run.of("plan", since))["reason"].startswith(worker)
    campaign.recover(campaign.run.events.index(died))


def test_somebody_dies_while_another_evaluates(tmp_path: Path) -> None:
    """The survivors wait for the one that evaluates; no generation passes meanwhile but the first."""
    with campaign_of(
        tmp_path, Shape(SHAPE.script, 3, 1), "--hang", str(HANG), "--detect", "3", "--connect", "2"
    ) as campaign:
        run = campaign.run
        evaluates, dies = sorted(run.pids())[:2]
        since = order(campaign, evaluates, "long.between", LONG)
        path = run.orders / f"{evaluates}.long.between"
        run.wait(lambda: not path.exists(), 5.0, "the evaluation")
        run.kill(dies)
        died = run.wait_event("worker_died", 5.0, since, worker=dies)
        campaign.recover(run.events.index(died), timeout=LONG + 30, waits=LONG + 5)
        assert not list(run.of("worker_died", since, worker=evaluates))
        losses = [plan["reason"] for plan in run.of("plan", since)]
        assert len(losses) <= 5, losses
        campaign.finish(waits=LONG + 5)


def test_the_job_finishes(campaign: Campaign) -> None:
    campaign.finish()

"""What reference 1 was tried with, in real processes, and failed each time: a communicator that is made anew.

There a member that is missing is waited for until the time-out, and then there is no default group; without rank 0 no
attempt succeeds; a pipeline that was restarted never meets the survivors; with one replica left the old communicator
stays; rank and size stay what they were; and nccl and wrong sizes are refused after the world has been replaced.

One job for all seven: three pipelines of two stages, whose script calls `reinit_dp_communicator` before each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.harness import SCRIPTS, START_SECONDS, Event, JobRun

REPLICAS, STAGES = 3, 2
GAP_SECONDS = 5.0  # the reference waits for 300


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobRun]:
    folder: Path = tmp_path_factory.mktemp("reference")
    with JobRun(folder, SCRIPTS / "train_reference.py", replicas=f"1:{REPLICAS}", pipe=STAGES) as run:
        run.wait_strength(REPLICAS, timeout=START_SECONDS)
        yield run
        run.stop_soon()
        assert run.wait_end() == 0


@pytest.fixture
def run(shared: JobRun) -> JobRun:
    """The job, three replicas strong again."""
    said(shared, REPLICAS, len(shared.poll()))
    return shared


def said(run: JobRun, replicas: int, since: int) -> dict[str, Event]:
    """What all workers say after a step with so many replicas, which must be right: by worker."""

    def whole_step() -> dict[str, Event] | None:
        steps: dict[tuple[int, int], dict[str, Event]] = {}
        for event in run.of("committed", since):
            if event.get("replicas") == replicas:
                steps.setdefault(tuple(event["version"]), {})[event["worker"]] = event
        return next((step for step in steps.values() if len(step) == replicas * STAGES), None)

    found: dict[str, Event] = run.wait(whole_step, 20.0, f"a step that all of {replicas} replicas tell of")
    check(found, replicas)
    return found


def check(events: dict[str, Event], replicas: int) -> None:
    """Ranks are dense, sizes are those of now, and the groups sum over whom they should."""
    assert sorted(event["rank"] for event in events.values()) == list(range(replicas * STAGES))
    for event in events.values():
        assert (event["rank"] // STAGES, event["rank"] % STAGES) == (event["place"], event["stage"])
        assert event["world"] == replicas * STAGES
        assert event["size"] == event["torch_size"] == event["summed"] == replicas
        assert event["place"] == event["torch_place"]
        assert event["summed_ends"] == replicas * STAGES
        assert event["summed_pipeline"] == STAGES
        assert event["source"] == event["stage"]  # the rank of the first of its data group
        assert event["same"]


def pipeline_of(events: dict[str, Event], place: int) -> list[str]:
    """The workers of one replica, by stage."""
    return sorted((w for w, event in events.items() if event["place"] == place), key=lambda w: events[w]["stage"])


def test_a_member_that_is_missing_is_not_waited_for(run: JobRun) -> None:
    before = said(run, REPLICAS, len(run.poll()))
    since, at = len(run.poll()), run.poll()[-1]["t"]
    with run.hold():
        run.kill(pipeline_of(before, 1)[1])
        after = said(run, REPLICAS - 1, since)
    assert min(event["t"] for event in after.values()) - at < GAP_SECONDS


def test_the_job_goes_on_without_rank_0(run: JobRun) -> None:
    before = said(run, REPLICAS, len(run.poll()))
    since, at = len(run.poll()), run.poll()[-1]["t"]
    with run.hold():
        run.kill(pipeline_of(before, 0)[0])
        after = said(run, REPLICAS - 1, since)
    assert min(event["t"] for event in after.values()) - at < GAP_SECONDS


def test_a_pipeline_that_was_restarted_meets_the_survivors(run: JobRun) -> None:
    before, pids = said(run, REPLICAS, len(run.poll())), run.pids()
    lost, since = pipeline_of(before, 2), len(run.poll())
    for worker in lost:
        run.kill(worker)
    after = said(run, REPLICAS, since)
    assert {worker for worker in pids if run.pids()[worker] != pids[worker]} == set(lost)
    remade = {event["worker"] for event in run.of("reinit_done", since) if event.get("remade")}
    for worker in before.keys() - set(lost) - remade:
        assert after[worker]["pipelines"] == before[worker]["pipelines"]  # their pipelines were left alone


def test_one_replica_is_a_group_of_one_and_grows_again(run: JobRun) -> None:
    before = said(run, REPLICAS, len(run.poll()))
    since = len(run.poll())
    with run.hold():
        for place in (0, 2):
            run.kill(pipeline_of(before, place)[0])
        alone = said(run, 1, since)
        assert sorted(alone) == sorted(pipeline_of(before, 1))
        since = len(run.poll())
    said(run, REPLICAS, since)


def test_ranks_and_sizes_are_those_of_the_survivors(run: JobRun) -> None:
    before = said(run, REPLICAS, len(run.poll()))
    since = len(run.poll())
    with run.hold():
        run.kill(pipeline_of(before, 0)[1])
        after = said(run, REPLICAS - 1, since)
    moved = pipeline_of(before, 1) + pipeline_of(before, 2)
    assert [after[worker]["rank"] for worker in moved] == [0, 1, 2, 3]
    assert [before[worker]["rank"] for worker in moved] == [2, 3, 4, 5]


def test_nccl_is_refused_before_anything_is_touched(run: JobRun) -> None:
    assert all(event["nccl_refused"] for event in said(run, REPLICAS, 0).values())


def test_a_wrong_size_is_refused_before_anything_is_touched(run: JobRun) -> None:
    assert all(event["size_refused"] for event in said(run, REPLICAS, 0).values())

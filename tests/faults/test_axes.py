"""Pipe x model x data, with torch's DistributedDataParallel over the data group: groups along all axes, and kills."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from tests.faults import invariants, problem
from tests.faults.harness import SCRIPTS, START_SECONDS, Event, JobRun

PIPE, MODEL, REPLICAS = 2, 2, 2
SIZE = PIPE * MODEL


@pytest.mark.long
def test_groups_along_every_axis_follow_formations_and_generations(tmp_path: Path) -> None:
    script = SCRIPTS / "train_axes.py"
    options = ("--standalone", "--model", str(MODEL))
    with JobRun(tmp_path, script, replicas=f"1:{REPLICAS}", pipe=PIPE, options=options) as run:
        run.wait_strength(REPLICAS, timeout=START_SECONDS)
        for coordinate in (0, SIZE - 1):
            run.wait_steps(3)
            since = len(run.poll())
            coordinates = run.coordinates()
            run.kill(next(worker for worker in sorted(coordinates) if coordinates[worker] == coordinate))
            run.wait_strength(REPLICAS, since)
        last = run.stop_soon()
        assert run.wait_end(60) == 0
        invariants.check(run.events, problem.samples_of)
        invariants.finished_alike(run.events, last, REPLICAS * SIZE)
        for event in run.of("committed"):
            check(event)
        follows_the_undisturbed_run(run, last)


def check(event: Event) -> None:
    """Each worker put one more than its rank in the replica into the sums."""
    within = event["rank"] % SIZE
    pipe, model = divmod(within, MODEL)
    assert (event["pipe"], event["model"]) == (pipe, model)
    assert event["summed_pipe"] == sum(stage * MODEL + model + 1 for stage in range(PIPE))
    assert event["summed_model"] == event["summed_mesh"] == sum(pipe * MODEL + place + 1 for place in range(MODEL))
    assert event["model_source"] == event["rank"] - model
    assert event["in_ends"] == (model == 0)


def follows_the_undisturbed_run(run: JobRun, last: int) -> None:
    """Each step's loss, but where a worker died before it had told its part, and so many are few."""
    replicas = {plan["generation"]: plan["replicas"] for plan in run.of("plan")}
    told: dict[int, list[float]] = defaultdict(list)
    whole: dict[int, int] = {}
    for event in run.of("committed"):
        if (event["pipe"], event["model"]) == (0, 0):
            told[event["step"]].append(event["loss"])
            whole[event["step"]] = replicas[event["version"][0]]
    losses = {step: sum(parts) for step, parts in told.items() if len(parts) == whole[step]}
    assert len(losses) >= last - 2, "two workers were killed"
    expected = dict(zip(range(1, last + 1), problem.reference_losses(), strict=False))
    assert losses == pytest.approx({step: expected[step] for step in losses}, rel=1e-3)

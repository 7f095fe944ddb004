"""Two replicas each lose one worker of another stage at the same moment: what is left of both makes a whole one."""

from __future__ import annotations

from pathlib import Path

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, TRAIN_PIPE, JobRun

REPLICAS, PIPE = 3, 3


def test_survivors_of_two_broken_replicas_are_a_whole_one_at_once(tmp_path: Path) -> None:
    with JobRun(tmp_path, TRAIN_PIPE, ("--step-ms", "30"), replicas=str(REPLICAS), pipe=PIPE) as run:
        run.wait_strength(REPLICAS, timeout=2 * START_SECONDS)
        run.wait_steps(5)
        placed = {event["worker"]: event["replica"] for event in run.of("reinit_done")}
        coordinates, pids = run.coordinates(), run.pids()
        first = next(w for w in sorted(placed) if placed[w] == 0 and coordinates[w] == 0)
        second = next(w for w in sorted(placed) if placed[w] == 1 and coordinates[w] == 2)
        survivors = placed.keys() - {first, second}

        since = len(run.poll())
        with run.hold():
            run.kill(first)
            run.kill(second)
            run.wait_strength(REPLICAS - 1, since)
            run.wait_steps(5)
        events = run.events[since:]
        step = next(e for e in events if e["event"] == "committed" and e["generation"] > run_generation(run, since))
        generation = step["generation"]
        working = {e["worker"] for e in events if e["event"] == "committed" and e["generation"] == generation}
        idle = survivors - working
        assert len(working) == (REPLICAS - 1) * PIPE
        assert {coordinates[worker] for worker in idle} == {1}, "of that stage there is one more than it takes"
        assert [e for e in events if e["event"] == "healed" and e["generation"] <= generation] == []
        assert all(run.pids()[worker] == pids[worker] for worker in working)

        run.wait_strength(REPLICAS, since, timeout=START_SECONDS)
        last = run.stop_soon()
        assert run.wait_end() == 0
        invariants.check(run.events, problem.samples_of)
        invariants.finished_alike(run.events, last, REPLICAS * PIPE)


def run_generation(run: JobRun, since: int) -> int:
    """The generation that ran when event `since` was next to come."""
    return max(int(event["generation"]) for event in run.events[:since] if event["event"] == "plan")

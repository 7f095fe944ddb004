"""A script's own sum over the replicas fails in the midst of a step, while a mate waits within the replica."""

from __future__ import annotations

from pathlib import Path

from tests.faults import invariants, problem
from tests.faults.harness import SCRIPTS, START_SECONDS, JobRun

REPLICAS, STAGES = 2, 2
GAP_SECONDS = 5.0


def test_who_waits_within_the_replica_for_one_that_left_midway_is_freed(tmp_path: Path) -> None:
    with JobRun(tmp_path, SCRIPTS / "train_midway.py", replicas=str(REPLICAS), pipe=STAGES) as run:
        run.wait_strength(REPLICAS, timeout=START_SECONDS)
        for slot in range(REPLICAS):
            run.wait_steps(5)
            before = {event["worker"]: event for event in run.of("reinit_done")}
            victim = next(w for w, at in run.coordinates().items() if at == STAGES - 1 and before[w]["replica"] == slot)
            since = len(run.poll())
            with run.hold():
                (tmp_path / "orders" / f"{victim}.die").touch()
                died = run.wait_event("worker_died", since=since)
                run.wait_strength(REPLICAS - 1, since)
            assert died["worker"] == victim
            first = min(e["t"] for e in run.of("committed", since) if e["t"] > died["t"])
            assert first - died["t"] < GAP_SECONDS
            after = {event["worker"]: event for event in run.of("reinit_done", since)}
            intact = {worker for worker, event in before.items() if event["replica"] != slot}
            for worker in intact:
                assert any(run.of("reinit_done", since, worker=worker, remade=True)), "what is left in it meets nobody"
                assert after[worker]["group"] != before[worker]["group"]
            run.wait_strength(REPLICAS, since)
        last = run.stop_soon()
        assert run.wait_end() == 0
        assert {e["stages"] for e in run.of("committed")} == {float(STAGES)}
        invariants.check(run.events, problem.samples_of)
        invariants.finished_alike(run.events, last, REPLICAS * STAGES)

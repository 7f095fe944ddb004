"""A stage of one replica dies: its replica is broken, the other one is not touched and trains on meanwhile."""

from __future__ import annotations

from pathlib import Path

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, TRAIN_PIPE, JobRun

REPLICAS, PIPE = 2, 2
MEANWHILE = 5  # steps that the rest makes while the replacement is held back


def test_only_the_broken_replica_is_rebuilt(tmp_path: Path) -> None:
    with JobRun(tmp_path, TRAIN_PIPE, replicas=str(REPLICAS), pipe=PIPE) as run:
        run.wait_strength(REPLICAS, timeout=START_SECONDS)
        for stage in range(PIPE):
            lose_a_stage(run, stage)
        last = run.stop_soon()
        assert run.wait_end() == 0
        invariants.check(run.events, problem.samples_of)
        invariants.finished_alike(run.events, last, REPLICAS * PIPE)


def lose_a_stage(run: JobRun, stage: int) -> None:
    run.wait_steps(5)
    before = {event["worker"]: event for event in run.of("reinit_done")}
    pids, coordinates = run.pids(), run.coordinates()
    victim = next(worker for worker in sorted(before) if coordinates[worker] == stage)
    broken = {worker for worker, event in before.items() if event["replica"] == before[victim]["replica"]}
    (survivor,) = broken - {victim}
    intact = before.keys() - broken

    since = len(run.poll())
    with run.hold():
        run.kill(victim)
        reduced = run.wait_event("plan", since=since, replicas=REPLICAS - 1)
        run.wait_strength(REPLICAS - 1, since)
        run.wait_steps(MEANWHILE)
    whole = run.wait_event("plan", since=since, replicas=REPLICAS)
    run.wait_strength(REPLICAS, since)
    run.wait_steps(3)
    meanwhile = [e for e in run.of("committed", since) if e["version"][0] == reduced["generation"]]
    after = {event["worker"]: event for event in run.of("reinit_done") if event["generation"] == whole["generation"]}

    assert len({event["step"] for event in meanwhile}) >= MEANWHILE
    assert {event["worker"] for event in meanwhile} == intact
    for worker in intact:
        assert run.pids()[worker] == pids[worker]
        assert after[worker]["formation"] == before[worker]["formation"]
        assert after[worker]["group"] == before[worker]["group"]
        assert not list(run.of("healed", since, worker=worker))
    assert run.pids()[survivor] == pids[survivor]
    assert run.coordinates()[survivor] == coordinates[survivor]
    assert after[survivor]["group"] != before[survivor]["group"]
    assert run.pids()[victim] != pids[victim]
    assert {e["worker"] for e in run.of("healed", since) if e["generation"] == whole["generation"]} == broken
    assert after[survivor]["formation"] == after[victim]["formation"] != before[victim]["formation"]

"""A connection breaks two hundred times: nobody is evicted, nothing is lost, and nothing grows (DESIGN: no leak)."""

from __future__ import annotations

from pathlib import Path

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, JobRun

SCRIPT = Path(__file__).parent / "scripts" / "train_glitching.py"
GLITCHES = 200
WARM = 20  # reinits until caches and allocators have settled
MEGABYTES_ALLOWED = 16  # of resident memory, over 180 reinits


def test_two_hundred_reinits_leave_nothing_behind(tmp_path: Path) -> None:
    with JobRun(tmp_path, SCRIPT, ["--glitches", str(GLITCHES)], replicas="2") as run:
        run.wait_event("reinit_done", timeout=START_SECONDS)
        assert run.wait_end(timeout=150) == 0
    plans = list(run.of("plan", state="running"))
    assert len(plans) >= GLITCHES
    assert {plan["replicas"] for plan in plans[1:]} == {2}, "nobody was evicted"
    assert not list(run.of("worker_died"))
    invariants.check(run.events, problem.samples_of)
    for worker in ("worker-0", "worker-1"):
        done = list(run.of("reinit_done", worker=worker))
        assert len(done) >= GLITCHES
        for kind in ("fds", "threads"):
            settled = [event[kind] for event in done[WARM:]]
            # The least of ten: a thread that lets go of the last group may still be there when the next one is counted.
            assert min(settled[-10:]) <= min(settled[:10]), f"{kind} of {worker} grew: {settled}"
        memory = [event["rss"] for event in run.of("committed", worker=worker)]
        early, late = min(memory[2 * WARM : 3 * WARM]), min(memory[-WARM:])
        assert late - early < MEGABYTES_ALLOWED * 2**20, f"{worker} grew by {(late - early) / 2**20:.1f} MiB"

"""A data connection breaks while both its ends live: one new generation with the same members, nobody put out."""

from __future__ import annotations

from pathlib import Path

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS
from tests.faults.hosts import several

SCRIPT = Path(__file__).parent / "scripts" / "train_glitching.py"
GLITCHES = 10


def test_between_two_hosts(tmp_path: Path) -> None:
    with several(
        tmp_path, 3, script=SCRIPT, replicas="3:3", pipe=1, workers=1, arguments=["--glitches", str(GLITCHES)]
    ) as hosts:
        hosts.living[0].wait_event("reinit_done", timeout=START_SECONDS)
        assert [run.wait_end(60.0) for run in hosts.runs] == [0, 0, 0]
        running = [event for event in hosts.generations(0).values() if event["state"] == "running"]
        broke = [event for event in running if "broke" in event["reason"]]
        assert len(broke) == GLITCHES, [event["reason"] for event in running]
        assert {event["replicas"] for event in running} == {3}
        assert not list(hosts.of("worker_died"))
        invariants.check(hosts.events(), problem.samples_of)

"""A script that crashes at once, again and again: restarted later and later, up to a limit, then its own traceback."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path

import pytest
from tests.faults.harness import START_SECONDS, JobRun

BACKOFF, RESTARTS = 0.1, 4

CRASHES = """
import os, sys, time
if os.environ["REKNIT_WORKER_ID"] == "worker-1":
    raise ValueError("no such column: answers")
time.sleep(3600)
"""


def restarts(run: JobRun) -> dict[str, list[float]]:
    """The delays before each worker's restarts, in order."""
    found: dict[str, list[float]] = defaultdict(list)
    for event in run.of("restart"):
        found[event["worker"]].append(event["delay"])
    return found


def test_it_is_given_up_in_the_end_with_its_own_traceback(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CRASHES)
    options = ("--standalone", "--no-warm", "--backoff", str(BACKOFF), "--max-restarts", str(RESTARTS))
    with JobRun(tmp_path, script, replicas="2", options=options) as run:
        # killed by somebody, which is no fault of its own, and counts for it alone
        run.wait(lambda: len(list(run.of("worker_started", worker="worker-0"))) == 1, START_SECONDS, "the start")
        run.kill_started("worker-0")
        assert run.wait_end(START_SECONDS) == 1
        delays = restarts(run)
        assert len(delays["worker-1"]) == RESTARTS
        assert len(delays["worker-0"]) == 1
        later = delays["worker-1"][1:]
        assert later == pytest.approx([BACKOFF * 2**n for n in range(len(later))])
        died = [event["t"] for event in run.of("worker_died", worker="worker-1")]
        waited = [after - before for before, after in itertools.pairwise(died)]
        assert all(passed >= delay for passed, delay in zip(waited, delays["worker-1"], strict=True))
        assert run.output().count("ValueError: no such column: answers") >= RESTARTS + 1
        assert "worker-1 is given up" in run.output()
        assert "worker-0 is given up" not in run.output()

"""A running job that a test hits again and again, from full strength to full strength."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, TRAIN_DATA, TRAIN_PIPE, Event, JobRun


class Shape(NamedTuple):
    """A job: its script, how many replicas, how many stages."""

    script: Path
    replicas: int
    pipe: int

    @property
    def workers(self) -> int:
        return self.replicas * self.pipe

    def __str__(self) -> str:
        return f"{self.replicas}x{self.pipe}"


DATA, PIPE = Shape(TRAIN_DATA, 3, 1), Shape(TRAIN_PIPE, 2, 2)


class Campaign:
    """One job that is hit again and again."""

    def __init__(self, run: JobRun, shape: Shape) -> None:
        self.run, self.shape = run, shape

    def victim(self, coordinate: int) -> str:
        """The worker at a coordinate that has lived longest: who dies often in a row is restarted late."""
        self.run.poll()
        newest = max(event["generation"] for event in self.run.of("placed"))
        there: list[str] = [
            event["worker"] for event in self.run.of("placed", generation=newest, coordinate=coordinate)
        ]
        started = {event["worker"]: event["t"] for event in self.run.of("attached")}
        return min(there, key=lambda worker: started[worker])

    def strike(self, worker: str, phase: str) -> None:
        """`worker` dies at `phase`, and the job recovers."""
        since = len(self.run.poll())
        fault = self.run.fail_at(worker, phase)
        died = self.run.wait_event("worker_died", since=since, worker=worker)
        assert died["cause"] == "SIGKILL"
        assert not fault.exists()
        self.recover(self.run.events.index(died))

    def recover(self, since: int, timeout: float = 20.0, waits: float = 5.0) -> None:
        """Wait until the job is at full strength again, and three steps more; all invariants hold."""
        whole = self.run.wait_strength(self.shape.replicas, since, timeout)
        self.run.wait_step(whole["step"] + 3)
        invariants.check(self.run.events, problem.samples_of, up_to=whole["step"], waits=waits)

    def check(self) -> None:
        """All invariants hold."""
        invariants.check(self.run.events, problem.samples_of, up_to=self.run.step - 3)

    def finish(self, waits: float = 5.0) -> int:
        """Let the job end well, all its workers alike; return its last step."""
        last = self.run.stop_soon()
        assert self.run.wait_end() == 0
        invariants.check(self.run.events, problem.samples_of, waits=waits)
        invariants.finished_alike(self.run.events, last, self.shape.workers)
        return last

    def stop(self, worker: str, phase: str, hang: float) -> Event:
        """`worker` stops, alive, at `phase`; it is named and put out after the hang time, and the job recovers."""
        since, pid = len(self.run.poll()), self.run.pids()[worker]
        fault = self.run.fail_at(worker, phase, number=signal.SIGSTOP)
        self.run.wait(lambda: not fault.exists(), 10.0, f"{worker} to come to {phase}")
        died = self.run.wait_event("worker_died", 4 * hang + 10, since, worker=worker)
        assert died["pid"] == pid
        plan = next(self.run.of("plan", since))
        assert plan["reason"].startswith(worker), plan
        others = {event["worker"] for event in self.run.of("worker_died", since)} - {worker}
        assert not others, f"{others} were put out beside {worker}"
        self.recover(self.run.events.index(plan))  # a spare may be there before the death is told
        return died


@contextmanager
def campaign_of(folder: Path, shape: Shape, *options: str, arguments: Sequence[str] = ()) -> Iterator[Campaign]:
    """A job of this shape at full strength.  Nobody in it dies of a fault of its own, so nobody is restarted late."""
    options = ("--standalone", "--backoff", "0", *options)
    with JobRun(folder, shape.script, arguments, replicas=str(shape.replicas), pipe=shape.pipe, options=options) as run:
        run.wait_strength(shape.replicas, timeout=START_SECONDS)
        yield Campaign(run, shape)

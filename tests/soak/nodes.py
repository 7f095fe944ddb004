"""A node of the soak's job: an agent and its workers, started again under a fresh name whenever the agent dies."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults import invariants
from tests.faults.harness import TRAIN_PIPE, Event, JobRun

PIPE, JOB = 2, "soak"


class Node:
    """One node, all its lives.  The constructor starts nothing, `keep` does."""

    def __init__(self, folder: Path, number: int, replicas: int, options: Sequence[str], step_ms: float) -> None:
        self._folder, self._number, self._options = folder, number, options
        self._replicas, self._step_ms = replicas, step_ms
        self.lives: list[JobRun] = []

    @property
    def run(self) -> JobRun:
        """The present life."""
        return self.lives[-1]

    def keep(self) -> None:
        """Start it, or start it again if its agent was killed.  RuntimeError if the agent has ended by itself."""
        if self.lives:
            code = self.run.returncode()
            if code is None:
                return
            if code != -signal.SIGKILL:
                said = self.run.output()[-3000:]
                raise RuntimeError(f"{self.run.name}: the agent, which nobody struck, ended with code {code}:\n{said}")
        # Without --agent: a new process is a new agent by its default name, as under any supervisor.
        options = ("--workers", str(PIPE), *self._options)
        arguments, name = ("--step-ms", str(self._step_ms)), f"node{self._number}-{len(self.lives)}"
        replicas = f"1:{self._replicas}"
        run = JobRun(self._folder, TRAIN_PIPE, arguments, replicas=replicas, pipe=PIPE, options=options, name=name)
        self.lives.append(run)
        self.run.start()

    def end(self) -> None:
        """Kill whatever is left of it."""
        for life in self.lives:
            life.end()

    def processes(self) -> dict[int, str]:
        """Its present agent and its workers that have groups: what each is, so that like is compared with like.

        An agent holds more when it leads, and more for each worker; a worker holds more the more replicas there are.
        """
        if not self.lives or self.run.returncode() is not None:
            return {}
        attached: dict[str, int] = {}
        replicas: dict[str, int] = {}
        for event in invariants.of(self.run.events, "attached", "worker_died", "reinit_done"):
            worker = event["worker"]
            if event["event"] == "attached":
                attached[worker] = event["pid"]
            elif event["event"] == "reinit_done":
                replicas[worker] = event["replicas"]
            else:
                replicas.pop(worker, None)
                attached.pop(worker, None)
        said = self.run.output()
        leads = said.rfind("leads the job (revision") > said.rfind("no longer leads")
        agent = f"{'leader' if leads else 'agent'} of {len(attached)}"
        workers = {attached[name]: f"worker in {count}" for name, count in replicas.items() if name in attached}
        return {self.run.pid: agent, **workers}

    def poll(self) -> Iterator[Event]:
        """All events of all its lives so far."""
        for life in self.lives:
            yield from life.poll()

"""A node of the soak's job: an agent and its workers, started again under a fresh name whenever it dies or has left."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults import invariants
from tests.faults.harness import TRAIN_PIPE, Event, JobRun

from reknit.runtime.recovery.recovery import RETIRED

NODES, PIPE, JOB = 3, 2, "soak"


class Node:
    """One node, all its lives.  The constructor starts nothing, `keep` does."""

    def __init__(self, folder: Path, number: int, options: Sequence[str], arguments: Sequence[str]) -> None:
        self._folder, self._number = folder, number
        self._options, self._arguments = options, arguments
        self.lives: list[JobRun] = []
        self.leaving = False  # the present life was asked to drain

    @property
    def run(self) -> JobRun:
        """The present life."""
        return self.lives[-1]

    def keep(self) -> None:
        """Start it, or start it again if it was killed or has drained.  RuntimeError if it has ended by itself."""
        if self.lives:
            code = self.run.returncode()
            if code is None:
                return
            if code != -signal.SIGKILL and not (self.leaving and code == 0):
                said = self.run.output()[-3000:]
                raise RuntimeError(f"{self.run.name}: the agent, which nobody struck, ended with code {code}:\n{said}")
        self.leaving = False
        # Without --agent: a new process is a new agent by its default name, as under any supervisor.
        options, name = ("--workers", str(PIPE), *self._options), f"node{self._number}-{len(self.lives)}"
        shape: dict[str, Any] = {"replicas": f"1:{NODES}", "pipe": PIPE}
        run = JobRun(self._folder, TRAIN_PIPE, self._arguments, options=options, name=name, **shape)
        self.lives.append(run)
        self.run.start()

    def drain(self) -> JobRun:
        """Ask its present life to leave, and return that."""
        self.leaving = True
        os.kill(self.run.pid, signal.SIGTERM)
        return self.run

    def workers(self) -> dict[str, int]:
        """Its workers that live: the process of each."""
        living = self.run.processes()
        return {name: pid for name, pid in self.run.pids().items() if pid in living}

    def placed(self) -> list[str]:
        """Its living workers that have a place in the newest generation that it has seen, by coordinate."""
        newest = self.run.generation
        places = {e["worker"]: e["coordinate"] for e in self.run.of("placed", generation=newest)}
        return sorted(places.keys() & self.workers().keys(), key=lambda name: (places[name], name))

    def end(self) -> None:
        """Kill whatever is left of it."""
        for life in self.lives:
            life.end()

    def processes(self) -> dict[int, str]:
        """Its present agent and its workers that have groups: what each is, so that like is compared with like.

        An agent holds more when it leads, and more for each worker; a worker for each replica, and for
        each of the last few generations that it has left.
        """
        if not self.lives or self.run.returncode() is not None:
            return {}
        attached: dict[str, int] = {}
        replicas: dict[str, int] = {}
        entered: Counter[str] = Counter()
        for event in invariants.of(self.run.events, "attached", "worker_died", "reinit_done"):
            worker = event["worker"]
            if event["event"] == "attached":
                attached[worker] = event["pid"]
            elif event["event"] == "reinit_done":
                replicas[worker] = event["replicas"]
                entered[worker] += 1
            else:
                replicas.pop(worker, None)
                attached.pop(worker, None)
                del entered[worker]
        said = self.run.output()
        leads = said.rfind("leads the job (revision") > said.rfind("no longer leads")
        agent = f"{'leader' if leads else 'agent'} of {len(attached)}"
        workers = {
            attached[name]: f"worker in {count} after {min(entered[name] - 1, RETIRED)}"
            for name, count in replicas.items()
            if name in attached
        }
        return {self.run.pid: agent, **workers}

    def poll(self) -> Iterator[Event]:
        """All events of all its lives so far."""
        for life in self.lives:
            yield from life.poll()

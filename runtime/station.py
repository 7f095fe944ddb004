"""What the parts of one agent share: its workers, the newest plan, and the ways to speak of what happens.

Only the agent's loop touches it (`agent`); the parts are `attending` (what comes from workers), `plans` (what goes to
them) and `vigil` (what time brings).
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from reknit.health.metrics import Metrics
from reknit.health.recording import Recording
from reknit.rendezvous.parts import Head
from reknit.rendezvous.session.session import Session
from reknit.runtime.config import Config
from reknit.runtime.events import EventLog
from reknit.runtime.fleet import Worker
from reknit.runtime.gaps import Gaps
from reknit.runtime.ipc.server import Server
from reknit.runtime.keeper import Keeper, environment_of_workers
from reknit.runtime.progress import Progress
from reknit.runtime.standing import Standing

log = logging.getLogger("reknit.agent")


class Station:
    """One agent's state.  The constructor opens nothing.

    `put` takes what happens on other threads into the loop.  `head`: the newest plan of this run of the job;
    `finished`: that run is over, for good: what comes after it is another.  `ending`: the exit code and why.
    `draining`: why all of this agent's workers leave the job, None if they do not.
    """

    def __init__(self, config: Config, session: Session, events: EventLog, path: Path, put: Any) -> None:
        self.config, self.session, self.events = config, session, events
        self.metrics = Metrics(config.job)
        self.recording = Recording(self.metrics, self._stays)
        self.standing = Standing(self.metrics)
        self.server: Server = Server(path, put, lease_seconds=config.ladder.lease)
        self.workers: dict[str, Worker] = {}
        self.keeper = self._keep(path, put) if config.script is not None else None
        plain = self.keeper is not None and self.keeper.plain
        self.progress = Progress(config.spec.min_replicas * config.spec.axes.size, time.monotonic(), plain)
        self.gaps = Gaps()
        self.head: Head | None = None
        self.finished = False
        self.ending: tuple[int, str] | None = None
        self.draining: str | None = None
        self.deadline: float | None = None

    def _keep(self, path: Path, put: Any) -> Keeper:
        config = self.config
        prefix = "worker" if config.standalone else config.agent
        self.workers = {f"{prefix}-{i}": Worker(f"{prefix}-{i}", i) for i in range(config.workers)}
        return Keeper(config, self.workers, environment_of_workers(config, str(path)), put, self.event, self.end)

    @property
    def generation(self) -> int:
        """The newest that is known, 0 for none."""
        return self.head.generation if self.head is not None else 0

    def event(self, event: str, worker: str | None, t: float | None = None, **fields: Any) -> None:
        """Write a line for `--events`, and record what it means."""
        moment = time.monotonic() if t is None else t
        self.events.write(event, worker, self.generation, fields, moment)
        if worker is not None:
            self.recording.happened(event, worker, fields, moment)

    def _stays(self, worker_id: str) -> bool:
        """Whether a worker that has no process will have one again."""
        worker = self.workers.get(worker_id)
        return self.keeper is not None and worker is not None and not worker.over

    def end(self, code: int, reason: str) -> None:
        """End this host's part: workers are told by SIGTERM, and killed when they do not listen."""
        if self.ending is not None:
            return
        self.ending = (code, reason)
        log.info("stopping: %s", reason)
        self.deadline = time.monotonic() + self.config.ladder.kill_delay + 1.0
        if self.keeper is not None:
            for worker in self.workers.values():
                self.tell_to_exit(worker, reason)
            self.keeper.stop_all()

    def tell_to_exit(self, worker: Worker, reason: str, forced: bool = False) -> None:
        """Tell a worker to exit at once; unless `forced`, only if its script leaves SIGTERM to us.

        A signal's handler has to wait for whatever the training thread is blocked in; this does not.
        """
        if worker.peer is not None:
            self.server.send(worker.peer, {"type": "exit", "reason": reason, "forced": forced})

"""Keeps this host's workers running: starts them, answers their exits, and says when its part cannot go on.

Only `reknit run` has one; beside a worker that somebody else starts (`reknit agent`) there is nothing to keep.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from reknit.runtime.config import EXIT_FAILED, Config, ConfigError
from reknit.runtime.fleet import Worker
from reknit.runtime.plain import GIVEN_UP, hosted, is_plain
from reknit.runtime.supervisor.restart import RestartPolicy, WorkerExit, describe_exit, is_failure, next_restart
from reknit.runtime.supervisor.supervisor import Exited, Failed, Started, Supervisor, SupervisorEvent

log = logging.getLogger("reknit.agent")

OVERDUE = "the drain's deadline passed"

Event = Callable[..., None]  # event(name, worker_id, **fields)


class Keeper:
    """Runs `workers` by a supervisor.  `give_up(code, reason)` is called when this host's part cannot go on."""

    def __init__(
        self,
        config: Config,
        workers: dict[str, Worker],
        environment: dict[str, str],
        put: Callable[[SupervisorEvent], None],
        event: Event,
        give_up: Callable[[int, str], None],
    ) -> None:
        self._config, self._workers, self._environment = config, workers, environment
        self._event, self._give_up = event, give_up
        self._supervisor = Supervisor(put, warm=config.warm, modules=("torch", "torch._dynamo", *config.preload))
        self.plain = config.script is not None and is_plain(config.script)
        if self.plain and config.spec.axes.size > 1:
            raise ConfigError(
                f"{config.script} knows nothing of reknit (the word does not occur in it): it can't have a job with "
                "--pipe or --model above 1"
            )
        self._policy = RestartPolicy(config.max_restarts, config.restart_window, backoff=config.backoff)
        self._stopping = False
        self._draining = False
        self.last_failure: str | None = None  # a sentence on the last worker here that failed by itself

    def open(self) -> None:
        """Start the warm process and all workers."""
        self._supervisor.open()
        for worker in self._workers.values():
            self._start(worker)

    def close(self) -> None:
        """End every worker that is left."""
        self._supervisor.close(self._config.ladder.kill_delay)

    def next_timer(self) -> float | None:
        """When a worker is due to be started again (monotonic)."""
        return min((w.restart_at for w in self._workers.values() if w.restart_at is not None), default=None)

    def run_timers(self, now: float) -> None:
        """Start the workers that are due."""
        for worker in self._workers.values():
            if worker.restart_at is not None and worker.restart_at <= now and not self._stopping:
                self._start(worker)

    def kill(self, worker: Worker, grace: float) -> None:
        """End one worker's process; what becomes of it is decided when it has exited."""
        self._supervisor.stop(worker.worker_id, grace)

    def drain_all(self) -> None:
        """Start nobody any more: this host's workers leave, each in its time."""
        self._draining = True
        for worker in self._workers.values():
            if worker.restart_at is not None:
                worker.over, worker.restart_at = True, None

    def stop_all(self) -> None:
        """End this host's part: SIGTERM now, SIGKILL after the delay; nobody is started again."""
        self._stopping = True
        for worker in self._workers.values():
            if worker.pid is None or worker.restart_at is not None:
                worker.over = True
        self._supervisor.stop_all(self._config.ladder.kill_delay)

    def handle(self, item: SupervisorEvent, job_finished: bool) -> None:
        """Something happened to a process."""
        worker = self._workers[item.worker_id]
        match item:
            case Started(_, pid):
                worker.pid = pid
                log.info("%s started as process %d", worker.worker_id, pid)
                self._event("worker_started", worker.worker_id, pid=pid, incarnation=None)
            case Exited():
                self._answer_exit(worker, item, job_finished)
            case Failed(_, reason):
                worker.over = True
                self._give_up(EXIT_FAILED, reason)

    def _start(self, worker: Worker) -> None:
        worker.forget_process()
        own = {"REKNIT_WORKER_ID": worker.worker_id, "LOCAL_RANK": str(worker.index)}
        own["LOCAL_WORLD_SIZE"] = str(len(self._workers))
        if "OMP_NUM_THREADS" not in os.environ:
            own["OMP_NUM_THREADS"] = "1"  # as torchrun: many workers share the cores
        assert self._config.script is not None  # a sidecar keeps nobody
        script = [self._config.script, *self._config.arguments]
        if self.plain:
            script = hosted(script, self._policy, self._config.ladder.kill_delay)
        self._supervisor.start(worker.worker_id, script, {**self._environment, **own})

    def _answer_exit(self, worker: Worker, item: Exited, job_finished: bool) -> None:
        now = time.monotonic()
        worker.exits.append(WorkerExit(now, item.lived_seconds, item.returncode))
        drain = worker.drain
        cause = describe_exit(item.returncode) if drain is None or not drain.overdue else OVERDUE
        done = job_finished or (worker.finished and item.returncode == 0)
        if drain is not None and drain.allowed:
            done = True
            self._event("drained", worker.worker_id, pid=item.pid, seconds=now - drain.since)
            log.info("%s (process %s) has drained, in %.1f s", worker.worker_id, item.pid, now - drain.since)
        if not done:
            moment = worker.lost_at if worker.lost_at is not None else now
            self._event("worker_died", worker.worker_id, t=moment, pid=item.pid, cause=cause)
            if not self._stopping:
                log.warning("%s (process %s) died: %s", worker.worker_id, item.pid, cause)
        if is_failure(item.returncode):
            words = [line for line in self._supervisor.tail(worker.worker_id) if line.strip()]
            self.last_failure = f"{worker.worker_id} failed ({cause}), saying: {words[-1] if words else 'nothing'}"
        worker.over = True  # unless it is started again below
        if self._stopping or done or self._draining or drain is not None:
            return  # but whoever was killed as it finished is missed: perhaps only it held its coordinate's last step
        if item.returncode == 0:
            self._give_up(EXIT_FAILED, self._ended_early(worker))
            return
        if self.plain and item.returncode == GIVEN_UP:
            self._give_up(EXIT_FAILED, f"{self._config.script} has failed too often; its last words are above")
            return
        decision = next_restart(worker.exits, now, self._policy)
        if decision.delay_seconds is None:
            self._give_up(EXIT_FAILED, f"{worker.worker_id} is given up: {decision.reason}; its last words are above")
            for line in self._supervisor.tail(worker.worker_id):
                print(f"[{worker.worker_id}] {line}", file=sys.stderr)
            return
        worker.over = False
        worker.restart_at = now + decision.delay_seconds
        self._event("restart", worker.worker_id, delay=decision.delay_seconds, reason=decision.reason)

    def _ended_early(self, worker: Worker) -> str:
        script = self._config.script
        if not worker.attached_once:
            return (
                f"{script} ended without ever calling reknit.join(): add `job = reknit.join()` before the training loop"
            )
        return f"{worker.worker_id} exited with code 0 before its training loop was done: don't exit inside the loop"


def environment_of_workers(config: Config, socket_path: str) -> dict[str, Any]:
    """What every worker of this host finds in its environment."""
    known = {
        "REKNIT_SOCKET": socket_path,
        "REKNIT_ADDRESS": config.address,
        "REKNIT_LEASE_SECONDS": str(config.ladder.lease),
    }
    return known if config.drain_signal is None else {**known, "REKNIT_DRAIN_SIGNAL": config.drain_signal}

"""From what an agent hears of its workers to its metrics.

Knows what events mean and nothing of where they come from.  Times are monotonic seconds of this host, on which agent
and workers agree; the few that are shown are turned into Unix time.  Its methods are called from the agent's loop, but
for `samples`, which is called at a scrape.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reknit.health.families import PHASES, Sample
from reknit.health.ledger import START, Ledger
from reknit.health.metrics import Metrics
from reknit.health.straggler import Stragglers
from reknit.health.worker_record import WorkerRecord, amount, phase_word, slowest_of

log = logging.getLogger("reknit.agent")

KEPT_SECONDS = 60.0  # for which the series of a worker that has left stay, to be scraped once more
Fields = Mapping[str, Any]

SIGNALS = frozenset({"SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGPWR", "SIGURG", "SIGXCPU"})


class Recording:
    """Records one agent's part of the job into `metrics`.  `stays(worker)`: it has no process now, but will again."""

    def __init__(
        self,
        metrics: Metrics,
        stays: Callable[[str], bool] = lambda worker: False,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._metrics, self._stays, self._clock, self._wall = metrics, stays, clock, wall
        self._lock = threading.Lock()
        self._workers: dict[str, WorkerRecord] = {}
        self._stragglers = Stragglers()
        self._runs = False  # whether the job trains, so that who has no place is a spare
        self._kept = 0.0, 0.0  # productive and lost seconds of workers that are forgotten
        metrics.ask(self.samples)

    # ---------------------------------------------------------------- what the agent sees

    def plan(self, runs: bool) -> None:
        """A plan was published, by which the job trains or waits; what each worker has of it follows."""
        with self._lock:
            self._runs = runs

    def attached(self, worker: str, pid: int, trains: bool, now: float) -> None:
        """A process has attached; `trains`: it had a place before, so this agent is the one that is new."""
        with self._lock:
            known = self._began(worker, pid, now, trains)
            known.up, known.phase = True, None
            if known.ledger.at == START:
                known.ledger.has_no_place(now, spare=self._runs)

    def assigned(self, worker: str, now: float) -> None:
        """It is told its coordinate, for which it builds its model."""
        with self._lock:
            if (known := self._workers.get(worker)) is not None:
                known.ledger.builds(now)

    def detached(self, worker: str, now: float) -> None:
        """Its connection has ended; what became of it follows."""
        with self._lock:
            if (known := self._workers.get(worker)) is not None:
                self._down(worker, known, now)

    def placed(self, worker: str, placed: bool, draining: bool, now: float) -> None:
        """A plan gives it a place, or none."""
        with self._lock:
            known = self._workers.get(worker)
            if known is None:
                return
            known.placed = placed
            if placed:
                known.ledger.has_place(now)
            elif known.ledger.at != START:  # one that still builds its model has asked for none
                known.ledger.has_no_place(now, spare=self._runs, draining=draining)

    def built(self, worker: str, now: float) -> None:
        """It has built its model."""
        with self._lock:
            if (known := self._workers.get(worker)) is not None and not known.placed:
                known.ledger.has_no_place(now, spare=self._runs)

    def pulse(self, worker: str, phase: str, kind: str, seconds: float, now: float) -> None:
        """It says what it has been at for so many seconds; 0: that is over."""
        with self._lock:
            if (known := self._workers.get(worker)) is None:
                return
            known.phase = phase_word(phase, kind) if seconds > 0 else None
            known.at = now - seconds

    def notice(self, signal: str) -> None:
        """A signal has asked workers here to leave."""
        self._metrics.count("preemption_notices", signal if signal in SIGNALS else "other")

    # ---------------------------------------------------------------- events

    def told(self, event: str, worker: str, generation: int, fields: Mapping[str, Any], moment: float) -> None:
        """A worker here tells of an event; fields that do not fit are not counted."""
        handle = {
            "committed": self._on_committed,
            "retried": self._on_retried,
            "reinit_begin": self._on_reinit_begin,
            "reinit_done": self._on_reinit_done,
            "healed": self._on_healed,
            "heal_failed": self._on_heal_failed,
            "restored": self._on_restored,
            "checkpoint": self._on_checkpoint,
            "checkpoint_failed": self._on_checkpoint_failed,
            "finished": self._on_finished,
        }.get(event)
        moment = min(moment, self._clock())
        with self._lock:
            known = self._workers.get(worker)
            if handle is not None and known is not None:
                handle(worker, known, generation, fields, moment)

    def happened(self, event: str, worker: str, fields: Mapping[str, Any], moment: float) -> None:
        """This agent itself writes an event of a worker."""
        with self._lock:
            known = self._workers.get(worker)
            match event:
                case "worker_started":
                    self._began(worker, fields.get("pid"), moment, False)
                case "draining" if known is not None:
                    known.asked = True
                case "drained" if known is not None:
                    self._metrics.count("drains", "done")
                    if (seconds := amount(fields.get("seconds"))) is not None:
                        self._metrics.observe("drain_seconds", seconds)
                    known.ledger.end(moment)
                    self._down(worker, known, moment)
                case "worker_died" if known is not None:
                    if known.asked:
                        self._metrics.count("drains", "lost")
                    known.ledger.died(moment)
                    self._down(worker, known, moment)
                case _:
                    pass

    def _on_committed(
        self, worker: str, known: WorkerRecord, generation: int, fields: Mapping[str, Any], at: float
    ) -> None:
        rolled, step = fields.get("rolled_forward") is True, amount(fields.get("step"))
        self._metrics.count("steps_committed", worker)
        # One that was a spare meanwhile has missed steps: the job did not stand still for so long.
        missed = step is not None and known.step is not None and step > known.step + 1
        if known.commit_at is not None and known.generation is not None and not rolled and not missed:
            name = "step_seconds" if generation == known.generation else "gap_seconds"
            self._metrics.observe(name, max(0.0, at - known.commit_at))
        known.ledger.committed(at, rolled_forward=rolled)
        if not rolled:
            known.commit_at, known.generation = at, generation
        known.phase, known.at = None, at
        if step is not None:
            known.step = int(step)
        timing = fields.get("timing")
        if isinstance(timing, Mapping):
            self._see_timing(worker, known, timing, at)

    def _see_timing(self, worker: str, known: WorkerRecord, timing: Mapping[str, Any], at: float) -> None:
        if (wait := amount(timing.get("wait"))) is not None:
            self._metrics.observe("reduce_wait_seconds", wait)
        if (slowdown := amount(timing.get("slowdown"))) is not None:
            known.slowdown = slowdown
        if (slowest := slowest_of(timing)) is not None:  # told every few steps
            for sentence in self._stragglers.hear(worker, slowest, known.step or 0, at):
                log.info("%s", sentence)

    def _on_retried(
        self, worker: str, known: WorkerRecord, generation: int, fields: Mapping[str, Any], at: float
    ) -> None:
        self._metrics.count("steps_retried", worker)
        known.ledger.left(at)

    def _on_reinit_begin(self, worker: str, known: WorkerRecord, generation: int, fields: Fields, at: float) -> None:
        known.ledger.must_leave(at)

    def _on_reinit_done(self, worker: str, known: WorkerRecord, generation: int, fields: Fields, at: float) -> None:
        known.ledger.arrived(at)
        known.phase, known.at = None, at
        told = fields.get("phases")
        phases = told if isinstance(told, Mapping) else {}
        for phase in PHASES:
            if (seconds := amount(phases.get(phase))) is not None:
                self._metrics.observe("reinit_seconds", seconds, phase)

    def _on_healed(
        self, worker: str, known: WorkerRecord, generation: int, fields: Mapping[str, Any], at: float
    ) -> None:
        if (count := amount(fields.get("bytes"))) is not None:
            self._metrics.count("heal_bytes", by=count)
        if (seconds := amount(fields.get("seconds"))) is not None:
            self._metrics.observe("heal_seconds", seconds)
            known.ledger.healed(at, seconds)

    def _on_heal_failed(self, worker: str, known: WorkerRecord, generation: int, fields: Fields, at: float) -> None:
        self._metrics.count("heal_failures")

    def _on_restored(
        self, worker: str, known: WorkerRecord, generation: int, fields: Mapping[str, Any], at: float
    ) -> None:
        if (seconds := amount(fields.get("seconds"))) is not None:
            known.ledger.healed(at, seconds)

    def _on_checkpoint(
        self, worker: str, known: WorkerRecord, generation: int, fields: Mapping[str, Any], at: float
    ) -> None:
        self._metrics.count("checkpoints", by=fields.get("complete") is True)
        if (paused := amount(fields.get("paused"))) is not None:
            known.ledger.paused(paused)

    def _on_checkpoint_failed(
        self, worker: str, known: WorkerRecord, generation: int, fields: Fields, at: float
    ) -> None:
        self._metrics.count("checkpoints_failed")

    def _on_finished(self, worker: str, known: WorkerRecord, generation: int, fields: Fields, at: float) -> None:
        known.ledger.end(at)
        known.phase, known.at = None, at

    # ---------------------------------------------------------------- within

    def _began(self, worker: str, pid: Any, now: float, trains: bool) -> WorkerRecord:
        known = self._workers.get(worker)
        if known is None:
            known = self._workers[worker] = WorkerRecord(Ledger(now), now, pid)
            known.ledger.begin(now, trains=trains)
            self._metrics.count("steps_committed", worker, by=0)
            self._metrics.count("steps_retried", worker, by=0)
            self._metrics.count("worker_restarts", worker, by=0)
        elif known.pid != pid:
            if known.pid is not None:
                self._metrics.count("worker_restarts", worker)
            known.ledger.begin(now, trains=trains)
            known.pid, known.at, known.generation, known.phase = pid, now, None, None
            known.slowdown, known.asked = None, False
        known.down_at = None
        return known

    def _down(self, worker: str, known: WorkerRecord, at: float) -> None:
        known.up, known.placed, known.slowdown, known.down_at, known.phase, known.at = False, False, None, at, None, at
        self._stragglers.forget(worker)

    # ---------------------------------------------------------------- at a scrape

    def totals(self) -> tuple[float, float]:
        """Productive and lost seconds of all workers that ever were here; to be a spare is no loss of the job's."""
        now = self._clock()
        with self._lock:
            self._forget(now)  # whether or not anybody scrapes
            ledgers = [known.ledger for known in self._workers.values()]
            for ledger in ledgers:
                ledger.pass_time(now)
            productive = self._kept[0] + sum(ledger.productive for ledger in ledgers)
            return productive, self._kept[1] + sum(ledger.lost_by_the_job for ledger in ledgers)

    @property
    def stragglers(self) -> frozenset[str]:
        """Who is a straggler, as the workers here know."""
        return self._stragglers.names

    def samples(self) -> Iterator[Sample]:
        """What is known of each worker at this moment."""
        now, wall = self._clock(), self._wall()
        with self._lock:
            self._forget(now)
            found = [sample for worker, known in self._workers.items() for sample in known.samples(worker, now, wall)]
        yield from found

    def _forget(self, now: float) -> None:
        """Those who are down for long and do not come back."""
        for worker, known in list(self._workers.items()):
            if known.down_at is not None and now - known.down_at > KEPT_SECONDS and not self._stays(worker):
                ledger = known.ledger
                self._kept = self._kept[0] + ledger.productive, self._kept[1] + ledger.lost_by_the_job
                del self._workers[worker]
                self._metrics.forget(worker)

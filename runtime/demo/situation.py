"""Where the job stands, folded out of the events so far: what the killer decides on, and what the view shows.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from reknit.rendezvous.records import Version
from reknit.runtime.demo.story import Event

STARTING, WAITING, TRAINING, REBUILDING, DEAD, FINISHED = (
    "starting",
    "waiting",
    "training",
    "rebuilding",
    "dead",
    "finished",
)
_STATUS_AFTER = {"reinit_begin": REBUILDING, "reinit_done": TRAINING, "finished": FINISHED}
_RECENT_STEPS = 50


@dataclass
class WorkerNow:
    """A worker's newest process."""

    pid: int
    status: str = STARTING
    step: int = 0


@dataclass
class Situation:
    """Give it every event in turn by `see`.

    `size`: workers in a replica.  `full`: (generation, t) of the first step that every worker of a generation with all
    replicas committed, for the newest such generation.  `reached`: when each step was first committed by anybody.
    """

    size: int = 1
    max_replicas: int = 1
    generation: int = 0
    replicas: int = 0
    step: int = 0
    loss: float | None = None
    loss_step: int = 0  # of which step that was
    full: tuple[int, float] | None = None
    kills: int = 0
    began: float | None = None
    now: float = 0.0
    workers: dict[str, WorkerNow] = field(default_factory=dict)
    seats: dict[tuple[int, int], str] = field(default_factory=dict)  # (replica, coordinate) → worker, as last placed
    reached: dict[int, float] = field(default_factory=dict)
    _replicas_of: dict[int, int] = field(default_factory=dict)
    _committed: dict[Version, set[str]] = field(default_factory=dict)
    _losses: dict[Version, dict[str, float]] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Take one event into account."""
        self.now = max(self.now, event["t"])
        worker = self.workers.get(event["worker"]) if event["worker"] is not None else None
        match event["event"]:
            case "agent_started":
                self.size, self.max_replicas = event["pipe"] * event["model"], event["max_replicas"]
                self.began = event["t"]
            case "plan":
                self.generation, self.replicas = event["generation"], event["replicas"]
                self._replicas_of[event["generation"]] = event["replicas"]
            case "worker_started" | "attached":
                self._start(event)
            case "placed":
                self._place(event)
            case "committed" if worker is not None:
                self._commit(event, worker)
            case "killed":
                self.kills += 1
                self._bury(event)
            case "worker_died":
                self._bury(event)
            case ("reinit_begin" | "reinit_done" | "finished") as kind if worker is not None:
                if worker.status not in (DEAD, FINISHED):
                    worker.status = _STATUS_AFTER[kind]
            case _:
                pass

    @property
    def is_full(self) -> bool:
        """Whether every worker of every replica has committed in the present generation."""
        return self.full is not None and self.full[0] == self.generation

    @property
    def step_seconds(self) -> float:
        """The median time between recent steps; 0 before there are two."""
        times = sorted(self.reached.values())[-_RECENT_STEPS:]
        return median(b - a for a, b in pairwise(times)) if len(times) > 1 else 0.0

    def _start(self, event: Event) -> None:
        known = self.workers.get(event["worker"])
        if known is None or known.pid != event["pid"]:
            self.workers[event["worker"]] = known = WorkerNow(event["pid"])
        if event["event"] == "attached":
            known.status = WAITING

    def _place(self, event: Event) -> None:
        for seat in [seat for seat, holder in self.seats.items() if holder == event["worker"]]:
            del self.seats[seat]
        self.seats[event["replica"], event["coordinate"]] = event["worker"]

    def _bury(self, event: Event) -> None:
        worker = self.workers.get(event["worker"])
        if worker is not None and worker.pid == event["pid"]:
            worker.status = DEAD

    def _commit(self, event: Event, worker: WorkerNow) -> None:
        version, t = Version(*event["version"]), event["t"]
        if worker.status != DEAD:
            worker.step = version.step
            if worker.status == WAITING:
                worker.status = TRAINING
        self.step = max(self.step, version.step)
        self.reached[version.step] = min(t, self.reached.get(version.step, t))
        committed = self._committed.setdefault(version, set())
        committed.add(event["worker"])
        replicas = self._replicas_of.get(version.generation)
        if "loss" in event:
            losses = self._losses.setdefault(version, {})
            losses[event["worker"]] = event["loss"]
            if len(losses) == replicas:
                self.loss, self.loss_step = sum(losses.values()), version.step
        is_newer = self.full is None or self.full[0] < version.generation
        if is_newer and replicas == self.max_replicas and len(committed) == replicas * self.size:
            self.full = (version.generation, t)
        if len(self._committed) > 8:  # what is complete or over need not be remembered
            self._committed.pop(next(iter(self._committed)))
            while len(self._losses) > 8:
                self._losses.pop(next(iter(self._losses)))

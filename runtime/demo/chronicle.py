"""The events of a whole run, sorted by what the report asks of them.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from reknit.rendezvous.records import Axes, Version
from reknit.runtime.demo.story import Event


class Seat(NamedTuple):
    """A worker's place in one generation, from the moment `t` at which its groups were ready."""

    t: float
    pid: int
    coordinate: int
    replica: int
    formation: str
    group: str
    seconds: float


class Commit(NamedTuple):
    """One worker's commit."""

    t: float
    worker: str
    pid: int
    version: Version
    rolled_forward: bool


class Kill(NamedTuple):
    """One kill; `t` was taken right before."""

    t: float
    worker: str
    pid: int
    step: int
    kind: str


@dataclass
class Chronicle:
    """What happened.

    `seats`: generation → worker → its place.  `uses`: version → worker → the samples that it consumed for that version,
    as told before its gradients went out (`contributed`) or after the step (`committed`).  `finishes`: worker →
    (coordinate, hash of its state).  `inspections`: process id → generation → (descriptors, threads) at full strength.
    """

    axes: Axes = field(default_factory=Axes)
    max_replicas: int = 1
    seats: dict[int, dict[str, Seat]] = field(default_factory=dict)
    uses: dict[Version, dict[str, list[int]]] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    losses: dict[Version, dict[str, float]] = field(default_factory=dict)
    finishes: dict[str, tuple[str, str]] = field(default_factory=dict)
    inspections: dict[int, dict[int, list[tuple[int, int]]]] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    began: float = 0.0
    ended: float = 0.0
    _pids: dict[str, int] = field(default_factory=dict)
    _coordinates: dict[int, int] = field(default_factory=dict)  # of processes

    @classmethod
    def of(cls, events: Iterable[Event]) -> Chronicle:
        """Sort the events."""
        chronicle = cls()
        for event in events:
            chronicle._take(event)
        chronicle.kills.sort()
        return chronicle

    def generation_at(self, moment: float) -> int:
        """The newest generation in which anybody was ready by then; 0 before the first."""
        return max(
            (g for g, seats in self.seats.items() if any(seat.t <= moment for seat in seats.values())), default=0
        )

    def _take(self, event: Event) -> None:
        worker, generation, t = event["worker"], event["generation"], event["t"]
        self.ended = max(self.ended, t)
        match event["event"]:
            case "agent_started":
                self.axes, self.max_replicas = Axes(event["pipe"], event["model"]), event["max_replicas"]
                self.began = t
            case "worker_started" | "attached":
                self._pids[worker] = event["pid"]
            case "placed":
                self._coordinates[self._pid(worker)] = event["coordinate"]
            case "reinit_done":
                pid = self._pid(worker)
                self.seats.setdefault(generation, {})[worker] = Seat(
                    t,
                    pid,
                    self._coordinates.get(pid, -1),
                    event["replica"],
                    event["formation"],
                    event["group"],
                    event["seconds"],
                )
            case "contributed" | "committed":
                self._consume(event)
            case "finished":
                self.finishes[worker] = (event.get("coordinate", ""), event.get("state_sha256", ""))
            case "killed":
                self.kills.append(Kill(t, worker, event["pid"], event["step"], event["kind"]))
            case "inspected":
                counts = self.inspections.setdefault(event["pid"], {}).setdefault(generation, [])
                counts.append((event["fds"], event["threads"]))
            case _:
                pass

    def _pid(self, worker: str) -> int:
        return self._pids.get(worker, -1)

    def _consume(self, event: Event) -> None:
        worker, version = event["worker"], Version(*event["version"])
        samples, uses = list(event["samples"]), self.uses.setdefault(version, {})
        if worker not in uses:
            uses[worker] = samples
        elif sorted(uses[worker]) != sorted(samples):
            uses[worker] = uses[worker] + samples  # it says two things: then both count
        if event["event"] == "committed":
            rolled_forward = bool(event.get("rolled_forward", False))
            self.commits.append(Commit(event["t"], worker, self._pid(worker), version, rolled_forward))
            if "loss" in event:
                self.losses.setdefault(version, {})[worker] = event["loss"]

"""How long a job stands still when a worker is killed, and where the time goes.

Three data-parallel replicas train `train_ddp.py` under `reknit run` with its defaults.  Again and again, when all three
have been committing for a while, one is SIGKILLed at a random moment of a step.  All is read from `--events`.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.bench.processes import ROOT, Processes
from tests.bench.table import Figure, Spread

from reknit.runtime.chaos.injector import strike
from reknit.runtime.demo.situation import Situation
from reknit.runtime.demo.story import Event, Reader
from reknit.runtime.supervisor.restart import RestartPolicy

REPLICAS = 3
STEP_MS = 33
SETTLED_STEPS = 10  # at full strength, between two kills
PATIENCE_SECONDS = 180  # a busy machine takes that long to import torch again
SCRIPT = ROOT / "deploy" / "examples" / "train_ddp.py"


@dataclass(frozen=True)
class Kill:
    """`t` was taken right before the signal."""

    t: float
    worker: str
    generation: int


@dataclass(frozen=True)
class Stop:
    """What one kill did, in seconds.

    `gap` is, in the worst survivor, from its last commit before the kill to its first commit of a step that it worked
    on in the next generation; `any_commit` the same to its first commit of any kind: a step of the old generation that
    was past its vote, or one that was rolled forward.  The others count from the kill, up to the last survivor.
    """

    gap: float
    any_commit: float
    before: float
    noticed: float
    planned: float
    begun: float
    done: float
    committed: float
    reinit: float
    full: float


def stop_of(kill: Kill, events: Sequence[Event]) -> Stop:
    """Read it off the events of the whole run."""
    later = [event for event in events if event["t"] > kill.t]
    commits = [event for event in events if event["event"] == "committed" and event["worker"] != kill.worker]
    survivors = sorted({event["worker"] for event in commits})
    plan = first(later, lambda e: e["event"] == "plan" and e["generation"] > kill.generation)
    following = plan["generation"]
    by_worker: dict[str, list[Event]] = {name: [e for e in later if e["worker"] == name] for name in survivors}

    def last(choose: Callable[[Event], bool]) -> float:
        return max(float(first(mine, choose)["t"]) for mine in by_worker.values()) - kill.t

    gaps, any_gaps, befores = [], [], []
    for name, mine in by_worker.items():
        before = max(e["t"] for e in commits if e["worker"] == name and e["t"] <= kill.t)
        gaps.append(first(mine, worked_in(following))["t"] - before)
        any_gaps.append(first(mine, lambda e: e["event"] == "committed")["t"] - before)
        befores.append(kill.t - before)
    reinits = [first(mine, done_in(following))["seconds"] for mine in by_worker.values()]
    return Stop(
        gap=max(gaps),
        any_commit=max(any_gaps),
        before=max(befores),
        noticed=first(later, lambda e: e["event"] == "worker_died")["t"] - kill.t,
        planned=plan["t"] - kill.t,
        begun=last(lambda e: e["event"] == "reinit_begin"),
        done=last(done_in(following)),
        committed=last(worked_in(following)),
        reinit=max(reinits),
        full=_full_strength(kill, later) - kill.t,
    )


def worked_in(generation: int) -> Callable[[Event], bool]:
    return lambda e: e["event"] == "committed" and e["version"][0] >= generation and not e.get("rolled_forward", False)


def done_in(generation: int) -> Callable[[Event], bool]:
    return lambda e: e["event"] == "reinit_done" and e["generation"] >= generation


def first(events: Iterable[Event], choose: Callable[[Event], bool]) -> Event:
    return next(event for event in events if choose(event))


def _full_strength(kill: Kill, later: Iterable[Event]) -> float:
    """When all replicas first committed the same step after the kill."""
    replicas: dict[int, int] = {}
    done: dict[tuple[int, int], set[str]] = {}
    for event in later:
        if event["event"] == "plan":
            replicas[event["generation"]] = event["replicas"]
        elif event["event"] == "committed" and replicas.get(event["version"][0]) == REPLICAS:
            workers = done.setdefault(tuple(event["version"]), set())
            workers.add(event["worker"])
            if len(workers) == REPLICAS:
                return float(event["t"])
    raise ValueError(f"the job did not come back to full strength after the kill at {kill.t:.3f}")


class Run:
    """A job under way, as far as its events tell: one file, or one of each agent."""

    def __init__(self, *paths: Path) -> None:
        self.events: list[Event] = []
        self.situation = Situation()
        self.kills: list[Kill] = []
        self._readers = [Reader(path) for path in paths]
        self._started: dict[str, float] = {}

    def add(self, path: Path) -> None:
        """One more agent."""
        self._readers.append(Reader(path))

    def read(self) -> None:
        """Take in what has happened since."""
        for event in sorted((e for reader in self._readers for e in reader.read()), key=lambda e: float(e["t"])):
            self.events.append(event)
            self.situation.see(event)
            if event["event"] == "worker_started":
                self._started[event["worker"]] = event["t"]

    def settled(self) -> bool:
        """Whether all replicas have made some steps together in a generation after the last kill."""
        now = self.situation
        if not now.is_full or now.full is None or (self.kills and now.generation <= self.kills[-1].generation):
            return False
        return sum(t > now.full[1] for t in now.reached.values()) >= SETTLED_STEPS

    def victims(self) -> list[str]:
        """Once settled: who has lived so long that its death is not taken for a crash loop, whose restarts are slow."""
        oldest = time.monotonic() - RestartPolicy().quick
        return sorted(name for name in self.situation.seats.values() if self._started[name] < oldest)

    def strike(self, worker: str, number: int = signal.SIGKILL, *others: int) -> None:
        """Send a signal to a worker now, and to `others`, processes that are to die with it."""
        generation = self.situation.generation
        moment = strike([*others, self.situation.workers[worker].pid], number)
        self.kills.append(Kill(moment, worker, generation))


def collect(kills: int, seed: int) -> tuple[list[Kill], list[Event]]:
    """Run the job and kill; returns the kills and all events by time, up to when the job is settled again."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as folder, Processes(Path(folder)) as processes:
        steps = ["--steps", "1000000", "--step-ms", str(STEP_MS)]
        processes.reknit("job", SCRIPT, *steps, replicas=REPLICAS, events=True)
        run = Run(processes.events("job"))
        for _ in range(kills):
            wait(run, lambda: run.settled() and bool(run.victims()), processes.check)
            time.sleep(chance.random() * run.situation.step_seconds)
            run.strike(chance.choice(run.victims()))
        wait(run, run.settled, processes.check)
    return run.kills, sorted(run.events, key=lambda event: float(event["t"]))


def wait(run: Run, until: Callable[[], bool], check: Callable[[], None]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not until():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"the job is not back at full strength after {PATIENCE_SECONDS} s")
        time.sleep(0.01)
        run.read()


def step_seconds(kills: Sequence[Kill], events: Iterable[Event]) -> float:
    """The median time between a worker's commits, leaving out what follows the kills."""
    steps: list[float] = []
    for worker in {event["worker"] for event in events if event["event"] == "committed"}:
        times = [event["t"] for event in events if event["event"] == "committed" and event["worker"] == worker]
        steps += [b - a for a, b in pairwise(times) if not any(k.t - 0.1 < b < k.t + 3 for k in kills)]
    return median(steps)


def run(quick: bool) -> list[Figure]:
    """Kill; the gap beside a step's time, then the moments after the kill, each in the last survivor to come there."""
    kills, events = collect(3 if quick else 12, seed=0)
    stops = [stop_of(kill, events) for kill in kills]
    step = 1000 * step_seconds(kills, events)

    def spread(field: str) -> Spread:
        return Spread.of(getattr(stop, field) for stop in stops)

    gap, anything, reinit, full = spread("gap"), spread("any_commit"), spread("reinit"), spread("full")
    figures = [
        Figure("gap, median", gap.median, "a step", step, 150, note=f"p90 {gap.p90:.0f}, {len(stops)} kills"),
        Figure("gap, worst", gap.worst, "a step", step, 500),
        Figure(
            "gap to a commit of any kind, median",
            anything.median,
            "a step",
            step,
            note=f"p90 {anything.p90:.0f}, worst {anything.worst:.0f}; also steps voted on before, and rolled forward",
        ),
        Figure("reinit, median", reinit.median, note=f"p90 {reinit.p90:.0f}, worst {reinit.worst:.0f}"),
        Figure("full strength after a kill, median", full.median, goal=1000, note=f"p90 {full.p90:.0f}"),
        Figure("full strength after a kill, worst", full.worst, goal=2000),
    ]
    moments = {
        "before": "last commit before the kill",
        "noticed": "kill -> the agent knows",
        "planned": "kill -> the next plan is known",
        "begun": "kill -> the last survivor is told",
        "done": "kill -> the last survivor's groups stand",
        "committed": "kill -> the last survivor's first commit",
    }
    for field, what in moments.items():
        taken = spread(field)
        figures.append(Figure(f"  {what}", taken.median, note=f"p90 {taken.p90:.0f}, worst {taken.worst:.0f}"))
    return figures

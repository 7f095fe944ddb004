"""How long a job stands still when a node dies whole, or a worker hangs, beside the settings that bound it.

The same job as in `gap`.  For a node loss its three replicas are three agents on one etcd: one is SIGKILLed together
with its worker, and started again under a fresh name.  For a hang a worker is stopped by SIGSTOP; the hang time is
short here, so that the bench is too.
"""

from __future__ import annotations

import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.bench.gap import REPLICAS, SCRIPT, STEP_MS, Kill, Run, first, wait, worked_in
from tests.bench.processes import Processes
from tests.bench.table import Figure, Spread

from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.runtime.config import Ladder
from reknit.runtime.demo.story import Event

HANG_SECONDS = 3.0
ARGUMENTS = ("--steps", "1000000", "--step-ms", str(STEP_MS))


def gap_of(kill: Kill, events: Sequence[Event]) -> tuple[float, float]:
    """Seconds of the gap, and from the strike to the next plan.

    The gap is, in the worst survivor, from its last commit before the strike to its first commit of a step that it
    worked on in the next generation.
    """
    plan = first(events, lambda e: e["event"] == "plan" and e["t"] > kill.t and e["generation"] > kill.generation)
    gaps = []
    for worker in {event["worker"] for event in events if worked_in(kill.generation)(event)} - {kill.worker}:
        mine = [event for event in events if event["worker"] == worker and event["event"] == "committed"]
        before = [event["t"] for event in mine if event["t"] <= kill.t and event["version"][0] == kill.generation]
        after = [event["t"] for event in mine if event["t"] > kill.t and worked_in(plan["generation"])(event)]
        if before and after:  # else it came later, or died of a later strike before it could commit
            gaps.append(min(after) - max(before))
    return max(gaps), plan["t"] - kill.t


class Nodes:
    """One agent with one worker each, restarted under a fresh name when it was killed."""

    def __init__(self, processes: Processes, etcd: str, run: Run) -> None:
        self._processes, self._run = processes, run
        self._options = ("--etcd", etcd, "--job", "bench")
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0
        for _ in range(REPLICAS):
            self.add()

    def add(self) -> None:
        """Start one more."""
        name = f"node{self._count}"
        self._count += 1
        options = (*self._options, "--agent", name)
        agent = self._processes.reknit(name, SCRIPT, *ARGUMENTS, replicas=REPLICAS, events=True, options=options)
        self._agents[name] = agent
        self._run.add(self._processes.events(name))

    def strike(self, worker: str) -> None:
        """The worker's node dies whole, and comes back."""
        name = worker.rpartition("-")[0]
        self._run.strike(worker, signal.SIGKILL, self._agents.pop(name).pid)
        self._processes.bury(name)
        self.add()


def node_losses(count: int, seed: int) -> Run:
    """Lose nodes, again and again."""
    chance, run = random.Random(seed), Run()
    with (
        tempfile.TemporaryDirectory(prefix="reknit-bench-") as folder,
        EmbeddedEtcd() as etcd,
        Processes(Path(folder)) as processes,
    ):
        nodes = Nodes(processes, etcd.endpoint, run)
        for _ in range(count):
            wait(run, run.settled, processes.check)
            time.sleep(chance.random() * run.situation.step_seconds)
            nodes.strike(chance.choice(sorted(run.situation.seats.values())))
        wait(run, run.settled, processes.check)
    return run


def hangs(count: int, seed: int) -> Run:
    """Stop workers, again and again."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as folder, Processes(Path(folder)) as processes:
        options = ("--standalone", "--hang", f"{HANG_SECONDS:g}")
        processes.reknit("job", SCRIPT, *ARGUMENTS, replicas=REPLICAS, events=True, options=options)
        run = Run(processes.events("job"))
        for _ in range(count):
            wait(run, lambda: run.settled() and bool(run.victims()), processes.check)
            time.sleep(chance.random() * run.situation.step_seconds)
            # Whoever hung rests before it gets a place again, each time for longer: so all take turns.
            hung = Counter(kill.worker for kill in run.kills)
            run.strike(min(run.victims(), key=lambda name: (hung[name], chance.random())), signal.SIGSTOP)
        wait(run, run.settled, processes.check)
    return run


def _figures(run: Run, bounded_by: str, bound: float, goal: float | None = None) -> Iterable[Figure]:
    events = sorted(run.events, key=lambda event: float(event["t"]))
    measured = [gap_of(kill, events) for kill in run.kills]
    gap, planned = Spread.of(gap for gap, _ in measured), Spread.of(plan for _, plan in measured)
    yield Figure("gap, median", gap.median, bounded_by, 1000 * bound, goal, note=f"{len(measured)} times")
    yield Figure("gap, worst", gap.worst, bounded_by, 1000 * bound, goal)
    yield Figure("  strike -> the next plan is known", planned.median, note=f"worst {planned.worst:.0f}")


def run_node(quick: bool) -> list[Figure]:
    """A node loss: an agent is asked whether it lives, and given so long to answer."""
    ladder = Ladder.derive()
    bound = ladder.accuse_after + ladder.answer
    return list(_figures(node_losses(2 if quick else 4, seed=0), "ask + answer", bound, goal=1000))


def run_hang(quick: bool) -> list[Figure]:
    """A hang: others wait for it as long as --hang says."""
    return list(_figures(hangs(2 if quick else 4, seed=0), "--hang", HANG_SECONDS))

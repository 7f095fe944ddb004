"""Writes the events of an invented run: 3 replicas of 2 stages, one kill, everything in order.

The tests of the demo's report spoil them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from reknit.runtime.demo.story import Event

GLOBAL_BATCH, STEPS, STEP_SECONDS = 6, 9, 0.1
VICTIM = "worker-3"  # stage 1 of replica 1
WORKERS = [f"worker-{number}" for number in range(6)]
FIRST_PIDS = {worker: 100 + number for number, worker in enumerate(WORKERS)}
NEW_PID = 200


def expected(step: int) -> Sequence[int]:
    """The samples of the step that begins with `step` steps committed."""
    return range(GLOBAL_BATCH * step, GLOBAL_BATCH * (step + 1))


class Writer:
    """Collects events; time goes on with every step."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.t, self.step, self.generation = 1000.0, 0, 0
        self.pids = dict(FIRST_PIDS)
        self.replicas: dict[int, str] = {}  # those of the present generation, and their formations

    def write(self, event: str, worker: str | None = None, **fields: object) -> None:
        self.events.append({"t": self.t, "event": event, "worker": worker, "generation": self.generation, **fields})

    def members(self) -> list[tuple[str, int, int]]:
        """(worker, replica, stage) of the present generation."""
        return [(WORKERS[2 * replica + stage], replica, stage) for replica in self.replicas for stage in (0, 1)]

    def start(self) -> None:
        self.write("agent_started", pid=99, http="", agent="a", job="j", pipe=2, model=1, max_replicas=3)
        for worker in WORKERS:
            self.write("worker_started", worker, pid=self.pids[worker], incarnation=None)
            self.write("attached", worker, pid=self.pids[worker], incarnation=f"i{self.pids[worker]}")

    def enter(self, replicas: dict[int, str], seconds: float) -> None:
        self.generation += 1
        self.replicas = replicas
        self.write("plan", reason="r", state="running", urgent=False, replicas=len(replicas))
        self.t += seconds
        for worker, replica, stage in self.members():
            formation = replicas[replica]
            self.write("placed", worker, replica=replica, coordinate=stage, formation=formation)
            is_new = self.pids[worker] != FIRST_PIDS[worker]
            self.write(
                "reinit_done",
                worker,
                seconds=0.0 if is_new else seconds,
                formation=formation,
                group=f"{self.pids[worker]}.{formation}",
                replica=replica,
                replicas=len(replicas),
                step=self.step,
            )

    def shares(self) -> dict[str, list[int]]:
        samples, count = list(expected(self.step)), len(self.replicas)
        shares = [samples[len(samples) * i // count : len(samples) * (i + 1) // count] for i in range(count)]
        order = sorted(self.replicas)
        return {worker: shares[order.index(replica)] for worker, replica, _ in self.members()}

    def prepare(self) -> None:
        self.t += STEP_SECONDS
        for worker, samples in self.shares().items():
            version = [self.generation, self.step + 1]
            self.write("contributed", worker, step=self.step + 1, samples=list(samples), version=version)

    def commit(self, but: str | None = None) -> None:
        for worker, samples in self.shares().items():
            if worker != but:
                loss = {"loss": 1.0 / (self.step + 1)} if int(worker[-1]) % 2 else {}
                version = [self.generation, self.step + 1]
                self.write("committed", worker, step=self.step + 1, samples=list(samples), version=version, **loss)
        self.step += 1

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.prepare()
            self.commit()

    def inspect(self, fds: int = 40, threads: int = 13) -> None:
        for worker, _, _ in self.members():
            self.write("inspected", worker, pid=self.pids[worker], fds=fds, threads=threads)

    def kill(self) -> None:
        self.write("killed", VICTIM, pid=self.pids[VICTIM], step=self.step, kind="SIGKILL")

    def replace_victim(self) -> None:
        self.write("worker_died", VICTIM, pid=self.pids[VICTIM], cause="SIGKILL")
        self.pids[VICTIM] = NEW_PID
        self.write("worker_started", VICTIM, pid=NEW_PID, incarnation=None)
        self.write("attached", VICTIM, pid=NEW_PID, incarnation="new")

    def finish(self) -> None:
        for worker, _, stage in self.members():
            self.write("finished", worker, step=self.step, coordinate=f"{stage}.0", state_sha256=f"hash-{stage}")
        self.generation += 1
        self.write("plan", reason="all have finished", state="finished", urgent=False, replicas=0)


def write_story(*, killed_after_vote: bool = False) -> list[Event]:
    """Steps 1-3 at full strength, a kill in step 4 (before its vote, or right after it), up to 9 steps in all.

    The gap is 20 ms of reinit and one step of 100 ms, after the 50 ms that step 4 had taken when it was killed.
    """
    writer = Writer()
    writer.start()
    writer.enter({0: "0@1", 1: "1@1", 2: "2@1"}, 0.2)
    writer.train(3)
    writer.inspect()
    if killed_after_vote:
        writer.prepare()
        writer.kill()
        writer.commit(but=VICTIM)
    else:
        writer.t += STEP_SECONDS / 2
        writer.kill()
    writer.replace_victim()
    writer.enter({0: "0@1", 2: "2@1"}, 0.02)
    writer.train(2)
    writer.enter({0: "0@1", 1: "1@3", 2: "2@1"}, 0.03)
    writer.train(STEPS - writer.step)
    writer.inspect()
    writer.finish()
    return writer.events

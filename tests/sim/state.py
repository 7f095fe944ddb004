"""What the model's state is made of: plain tuples, so that millions of them can be compared and kept.

Workers are numbers.  A version is one number, generation * 16 + step, so that versions order as the product's do.
"""

from __future__ import annotations

from typing import NamedTuple

UP, DEAD, GONE = "up", "dead", "gone"
OPEN, LEFT, CRASHED, SILENT = 0, 1, 2, 3
IDLE, WAIT, HEAL = "idle", "wait", "heal"
CONNECT, COMPARE, COMPARE_ALL, READY = 0, 1, 2, 3  # positions within a generation, then per step s:
WORK, REDUCE, VOTE, VOTE_ALL = 0, 1, 2, 3  # 4s + these
NAMES = ("is connected", "compared", "compared in the job", "is ready")
STEP_NAMES = ("has worked", "has reduced (PREPARED)", "voted", "voted in the job (COMMITS)")
INCOMPLETE = -1
EVENTS = ("crash", "silent", "evict", "glitch", "tear", "respawn", "join", "drain", "scale", "unscale")


def tag(generation: int, step: int) -> int:
    return generation * 16 + step


def step_of(version: int) -> int:
    return version % 16


def show(version: int) -> str:
    return f"g{version // 16}.s{version % 16}"


CHECKPOINT = tag(1, 0)


class Rules(NamedTuple):
    """Each switch is one rule that the shell around the product's pure functions has to follow."""

    repair: bool = True  # an incomplete comparison changes nothing; off: straight to the newest checkpoint
    target: bool = True  # newcomers are healed after the roll forward, not before it
    compare_job: bool = True  # the comparison spans the whole job; off: one data group each
    vote_job: bool = True  # the vote spans the whole job; off: one data group each
    replica_last: bool = True  # data group first, replica last; off: replica first
    reliable: bool = True  # the replica's rounds are not interrupted while its formation stands
    prompt: bool = True  # who leaves tells its replica at once; off: in its next round with them
    oblige: bool = True  # after an outcome that says "go on", work is begun whatever plan has come
    ready: bool = True  # a replica's round after healing, before work
    agree: bool = True  # planned changes: leave at a vote that says that all know a newer plan
    release: bool = True  # a drained worker stays until a generation without it runs
    finish: bool = True  # a worker that made the last step stays until all have
    incarnation: bool = True  # plans name incarnations; off: worker ids
    formed: bool = True  # a formation's identity has the generation that formed it; off: only the set


class Plan(NamedTuple):
    places: tuple[tuple[int, ...], ...] = ()  # one tuple of workers per replica, indexed by coordinate
    formed: tuple[int, ...] = ()  # per replica: the generation that formed it
    since: tuple[int, ...] = ()  # per worker: first generation of its unbroken run of places, 0 none
    broken: int = 0  # generations up to this one have lost a member or a connection
    target: int = 0  # a version decided by the leader (0: the comparison decides)
    restore: bool = False  # it comes from the scripts or a checkpoint
    origin: int = 0  # the newest generation that restored what the scripts built
    finished: bool = False  # the leader says that the job has finished


class Gen(NamedTuple):
    """What has happened within one generation's groups."""

    pos: tuple[int, ...]  # per worker: the last collective that it has entered, -1 none
    closed: tuple[int, ...]  # per worker
    table: tuple[tuple[int, int, bool] | None, ...]  # per worker: its row of the comparison; () when decided
    decision: int  # 0 not all have entered the comparison; INCOMPLETE; or a version
    known: tuple[int, ...]  # per step: the newest generation that all voters know
    base: tuple[int, ...]  # ghost, per step: the version that the attempt started from


class Worker(NamedTuple):
    life: str = UP
    member: bool = False  # in the leader's view
    drain: bool = False
    coord: int = -1
    placed: int = 0  # newest generation that gave it a place (from the plans)
    since: int = 0  # first generation of its newest unbroken run of places (from the plans)
    ready: int = 0  # newest generation whose comparison brought it to the decided version
    known: int = 0  # newest plan that it has seen
    left: int = 0  # newest generation that it has left, or that had no place for it
    cur: int = 0  # generation whose groups it holds
    phase: str = IDLE
    ver: int = 0  # committed version, 0 no state
    prep: int = 0  # prepared version: reduced gradients, held on top of ver; 0 none
    incomplete: int = 0  # generation whose comparison it saw end incomplete
    torn: bool = False  # its formation's own connections broke, though all may live
    mute: bool = False  # its agent is gone: it sees no more plans
    again: bool = False  # a new incarnation, which no plan names yet
    pristine: bool = False  # its state is what its script built
    begun: int = 0  # ghost: newest step begun


FRESH = Worker(member=True, pristine=True)


def gone(worker: Worker) -> Worker:
    return Worker(life=GONE, drain=worker.drain, coord=worker.coord, begun=99)


class State(NamedTuple):
    plans: tuple[Plan, ...]
    workers: tuple[Worker, ...]
    gens: tuple[Gen | None, ...]
    desired: int
    budget: tuple[int, ...]
    faulty: bool  # ghost: something other than planned changes has happened
    exited: bool  # ghost: somebody exited after the last step
    committed: tuple[int, ...]  # ghost, per step: the version that somebody has committed


class Scenario(NamedTuple):
    stages: int
    replicas: int
    steps: int = 1
    crash: int = 0  # seen by its peers at once
    silent: int = 0  # power, partition: nobody gets an error
    evict: int = 0  # false suspicion: alive, told or not told
    glitch: int = 0  # a data connection breaks, both ends live
    tear: int = 0  # a replica's own connection breaks, both ends live
    respawn: int = 0  # a crashed worker is back under its id before the leader has looked
    join: int = 0
    drain: int = 0
    scale: int = 0  # one replica fewer
    unscale: int = 0  # and back
    desired: int = 0
    spares: tuple[int, ...] = ()  # coordinates of stale spares at the start
    total: int = 9  # at most this many events of all kinds
    every: bool = False  # watches may also deliver plans one by one, late
    hasty: bool = False  # the leader takes the records of the dead, whose loss it has not seen, for true
    fresh: bool = False  # the job has not begun: nobody has had a place

    def allowed(self) -> tuple[int, ...]:
        """How often each of EVENTS may happen."""
        return tuple(getattr(self, event) for event in EVENTS)


class ViolationError(Exception):
    """An invariant does not hold."""

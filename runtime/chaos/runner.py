"""Strikes a running job again and again, watches it recover, and says so."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import FINISHED, LOST, Member
from reknit.runtime.chaos import choice
from reknit.runtime.chaos.choice import STOP, Fault, Hold, Orders, Situation, choose
from reknit.runtime.chaos.injector import Grip
from reknit.runtime.chaos.report import FAILED, RECOVERED, Strike, describe, table, verdict
from reknit.runtime.chaos.situation import Job, join_names
from reknit.runtime.chaos.watch import JobWatch
from reknit.runtime.config import EtcdAccess
from reknit.runtime.identity import look, why_no_agent, why_no_worker
from reknit.runtime.operating.opening import CONNECT_SECONDS, connection

_POLL_SECONDS = 0.02  # between looks at the clock; news from the store comes at once
_PATIENT_SECONDS = 5.0  # without a fault, before it is said why


class ChaosError(ReknitError):
    """Chaos cannot begin."""


@dataclass(frozen=True)
class Chaos:
    """What `reknit chaos` was told.  `seconds`: for how long to strike (None: until interrupted); `deadline`: seconds
    within which the job must have recovered from a fault."""

    job: str
    etcd: str
    access: EtcdAccess = field(default_factory=EtcdAccess)
    orders: Orders = field(default_factory=Orders)
    seconds: float | None = None
    deadline: float = 120.0
    json: Path | None = None


def run(chaos: Chaos) -> int:
    """Strike until the time is over, the job ends, it does not recover, or Ctrl-C; print the report.

    Returns 0 if the job recovered from every fault, 1 if not or if there was none.  Raises ReknitError if it can't
    begin.
    """
    with connection(chaos.etcd, chaos.access) as store:
        watch = JobWatch(store, chaos.job)
        try:
            if not watch.exists(CONNECT_SECONDS):
                raise ChaosError(f"etcd at {chaos.etcd} knows no job {chaos.job}: is it started, under this --job ID?")
            watch.start()
            with _until_interrupted() as interrupted:
                striker = Striker(chaos, watch)
                try:
                    striker.run(interrupted)
                finally:
                    striker.close()
            return _conclude(chaos, striker)
        finally:
            watch.close()


def _conclude(chaos: Chaos, striker: Striker) -> int:
    code, sentence = verdict(striker.strikes, striker.why)
    print(f"\n{table(striker.strikes, chaos.orders.kinds)}\n{sentence}", flush=True)
    if chaos.json is not None:
        told = {"exit": code, "verdict": sentence, "strikes": [strike.plain() for strike in striker.strikes]}
        try:
            chaos.json.write_text(json.dumps(told, indent=1) + "\n")
        except OSError as error:
            raise ChaosError(f"--json {chaos.json} cannot be written: {error.strerror}") from None
    return code


@contextlib.contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C, SIGTERM or SIGHUP has come: then the report is due.  A second one ends this at once."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    came: list[int] = []

    def note(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Striker:
    """The loop.  `strikes` is what it did; `why` says what it waited for last."""

    def __init__(self, chaos: Chaos, watch: JobWatch) -> None:
        self._chaos, self._watch = chaos, watch
        self._host = socket.gethostname()
        self._began = time.monotonic()
        self._stopped: list[Grip] = []
        self._running: tuple[int, float] | None = None  # the generation in which all were ready, and since when
        self._known: dict[tuple[str, str, int], str] = {}  # why a process may not be struck; empty: it may
        self._quiet_since = self._began
        self._waiting = ""
        self._greeted = False
        self.strikes: list[Strike] = []
        self.why = ""

    def run(self, interrupted: Callable[[], bool]) -> None:
        """Strike until the end."""
        seen = 0
        over = None if self._chaos.seconds is None else self._began + self._chaos.seconds
        while not interrupted():
            seen = self._watch.wait(seen, _POLL_SECONDS)
            job = self._watch.read()
            now = time.monotonic()
            self._note_running(job, now)
            if self._is_open():
                self._settle(job, now)
            elif self._has_ended(job) or (over is not None and now >= over):
                return
            else:
                self._strike_if_due(job, now)
            if self.strikes and self.strikes[-1].outcome == FAILED:
                return

    def close(self) -> None:
        """Let what was stopped go on, so that it can end."""
        for grip in self._stopped:
            grip.strike(signal.SIGCONT)
            grip.close()
        self._stopped = []

    def _has_ended(self, job: Job) -> bool:
        """Whether the job is over; an old plan that says so, while members of a new run gather, means nothing."""
        plan = job.plan
        if plan is None or plan.state not in (FINISHED, LOST):
            return False
        if not self._greeted and any(not (member.dead or member.finished) for member in job.members.values()):
            return False
        self._say(f"the job has ended: generation {plan.generation} is {plan.state}: {plan.reason}")
        return True

    def _say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._began:8.2f} s  {sentence}", flush=True)

    # ---------------------------------------------------------------- recovery

    def _is_open(self) -> bool:
        return bool(self.strikes) and self.strikes[-1].outcome not in (RECOVERED, FAILED)

    def _note_running(self, job: Job, now: float) -> None:
        if job.why_not_running():
            self._running = None
        elif self._running is None or self._running[0] != job.generation:
            self._running = (job.generation, now)
        if self._running is not None and not self._greeted:
            self._greeted = True
            self._say(f"generation {job.generation} of job {self._chaos.job} runs: {summary(job, self._host)}")

    def _settle(self, job: Job, now: float) -> None:
        """Look whether the job has recovered from the last fault, or will not any more."""
        strike = self.strikes[-1]
        taken = now - strike.t
        plan = job.plan
        finished = plan is not None and plan.state == FINISHED
        if finished or job.recovered(strike.generation, strike.fault.names):
            self.strikes[-1] = replace(strike, outcome=RECOVERED, seconds=taken)
            where = "" if plan is None else f", replicas: {len(plan.replicas)}: {plan.reason}"
            self._say(f"recovered in {taken:.2f} s: generation {job.generation}{where}")
            return
        lost = plan is not None and plan.state == LOST
        if lost or taken > self._chaos.deadline:
            self.strikes[-1] = replace(strike, outcome=FAILED)
            limit = f" within {self._chaos.deadline:g} s"
            why = plan.reason if lost and plan is not None else job.why_not_running() or "its victims still have places"
            self._say(f"NOT recovered{'' if lost else limit}: {why}")

    # ---------------------------------------------------------------- strikes

    def _strike_if_due(self, job: Job, now: float) -> None:
        chosen = choose(self._chaos.orders, self._situation(job), now)
        if isinstance(chosen, Hold):
            self._wait(chosen, now)
            return
        self._strike(chosen, job)

    def _situation(self, job: Job) -> Situation:
        return Situation(
            job,
            None if self._running is None else self._running[1],
            {member.name for member in job.members.values() if not self._why_not_worker(member, job)},
            {name for name in job.agents if not self._why_not_agent(name, job)},
            Counter(strike.fault.kind for strike in self.strikes),
            self.strikes[-1].t if self.strikes else None,
        )

    def _why_not_worker(self, member: Member, job: Job) -> str:
        """Why this worker is left alone; empty if it may be struck.  The kernel is asked once, the user told once."""
        agent = job.agents.get(member.agent)
        if member.dead or agent is None:  # the agent's record comes last
            return "it is dead, or its agent has no record"
        key = (member.worker_id, member.incarnation, agent.pid)
        if key not in self._known:
            if member.host != self._host:
                why = f"it is on host {member.host}, and this is {self._host}"
            else:
                kept_by = 0 if self._why_not_agent(member.agent, job) else agent.pid
                why = why_no_worker(look(member.pid), member.worker_id, kept_by)
            self._remember(key, member.worker_id, why)
        return self._known[key]

    def _why_not_agent(self, name: str, job: Job) -> str:
        record = job.agents[name]
        key = (name, "", record.pid)
        if key not in self._known:
            why = f"it is on host {record.host}, and this is {self._host}"
            if record.host == self._host:
                why = why_no_agent(look(record.pid), self._chaos.job, name)
            self._remember(key, f"agent {name}", why)
        return self._known[key]

    def _remember(self, key: tuple[str, str, int], what: str, why: str) -> None:
        self._known[key] = why
        if why:
            self._say(f"{what} is left alone: {why}")

    def _strike(self, fault: Fault, job: Job) -> None:
        """Grip, look once more, strike; nothing if somebody is no longer what the records say."""
        agent = job.agents.get(fault.workers[0].agent)
        root = agent.pid if agent is not None else 0
        grip = Grip([*([root] if fault.agent else []), *(member.pid for member in fault.workers)])
        doubt = why_no_agent(look(root), self._chaos.job, agent.agent) if agent is not None else "it has no record"
        kept_by = 0 if doubt else root
        reasons = [why_no_worker(look(member.pid), member.worker_id, kept_by) for member in fault.workers]
        if fault.agent:
            reasons.append(doubt)
        if grip.missing or any(reasons):
            grip.close()  # it is ending by itself: the records will say so
            return
        moment = grip.strike(choice.SIGNALS[fault.kind])
        self.strikes.append(Strike(moment, fault, job.generation))
        self._say(f"{describe(fault)} in generation {job.generation}")
        if fault.kind == STOP:
            self._let_go()
            self._stopped.append(grip)
        else:
            grip.close()

    def _let_go(self) -> None:
        """Forget what was stopped once and has ended since."""
        ended = [grip for grip in self._stopped if grip.all_ended()]
        self._stopped = [grip for grip in self._stopped if grip not in ended]
        for grip in ended:
            grip.close()

    def _wait(self, hold: Hold, now: float) -> None:
        """Say for what it waits, if that lasts."""
        if hold.reason != self._waiting:
            self._waiting, self._quiet_since = hold.reason, now
        if hold.reason:
            self.why = hold.reason
            if now - self._quiet_since > _PATIENT_SECONDS:
                self._quiet_since = now + 5 * _PATIENT_SECONDS
                self._say(f"waiting: {hold.reason}")


def summary(job: Job, host: str) -> str:
    """Who is there, as a sentence."""
    here: Sequence[str] = sorted(member.worker_id for member in job.members.values() if member.host == host)
    return f"{len(job.members)} workers of {len(job.agents)} agents; on this host: {join_names(here) or 'none'}"

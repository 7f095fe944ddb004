"""torchrun with its rendezvous in etcd, beside torchrun's own: does it come back, and how soon.

Three agents with one worker each.  Five workers are SIGKILLed, one after the other, then each of the three agents once
together with its worker, as if its host were lost; it is started again when the others go on without it.  A job that
is not back in time is given up, and the next loss strikes a new one.  The rendezvous' times are the same for both.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.table import Figure, Spread
from tests.torchrun_agents import Agents, Moment

from reknit.rendezvous.store.embedded import EmbeddedEtcd

HOSTS = (0, 1, 2)
WORKERS_KILLED = (1, 2, 0, 1, 2)
AGENTS_KILLED = (0, 1, 2)
DEADLINE = 90.0  # seconds for one recovery, or a start
STARTS = 3  # tries
TIMES = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5"

Start = Callable[[Path, str], Agents]


@dataclass
class Outcome:
    """Seconds of each recovery, None for one that did not come; of the agents' deaths, and of their return."""

    workers: list[float | None] = field(default_factory=list)
    agents: list[float | None] = field(default_factory=list)
    returns: list[float | None] = field(default_factory=list)


class Series:
    """Losses that strike one job after the other, until one does not come back: then a new job."""

    def __init__(self, folder: Path, start: Start) -> None:
        self._folder, self._start = folder, start
        self._jobs = 0
        self._stack = ExitStack()
        self._agents: Agents | None = None
        self.outcome = Outcome()

    def __enter__(self) -> Series:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill_worker(self, host: int) -> None:
        """One worker dies."""
        job = self._job()
        seconds = job.wait_back(HOSTS, len(HOSTS), job.kill_worker(host), DEADLINE) if job is not None else None
        self.outcome.workers.append(self._see(seconds))

    def kill_agent(self, host: int) -> None:
        """One host dies, and comes back."""
        job, others = self._job(), [other for other in HOSTS if other != host]
        seconds = job.wait_back(others, len(others), job.kill_agent(host), DEADLINE) if job is not None else None
        self.outcome.agents.append(self._see(seconds))
        if job is not None and self._agents is not None:
            moment = job.now()
            job.start(host)
            self.outcome.returns.append(self._see(job.wait_back(HOSTS, len(HOSTS), moment, DEADLINE)))

    def _job(self) -> Agents | None:
        """The job that runs, or a new one; None if it does not begin: an agent that comes late is a change, too."""
        for _ in range(STARTS):
            if self._agents is None:
                self._agents = self._see_begin()
        return self._agents

    def _see_begin(self) -> Agents | None:
        self._jobs += 1
        folder = self._folder / str(self._jobs)
        folder.mkdir(parents=True)
        agents = self._stack.enter_context(self._start(folder, f"bench-{self._jobs}"))
        for host in HOSTS:
            agents.start(host)
        if agents.wait_back(HOSTS, len(HOSTS), Moment(agents.now().t), DEADLINE) is None:
            self._stack.close()
            return None
        return agents

    def _see(self, seconds: float | None) -> float | None:
        if seconds is None:
            self._stack.close()
            self._agents = None
        return seconds


def run(quick: bool) -> Sequence[Figure]:
    """Strike both."""
    workers, agents = (WORKERS_KILLED[:1], AGENTS_KILLED[:1]) if quick else (WORKERS_KILLED, AGENTS_KILLED)
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as folder, EmbeddedEtcd() as etcd:
        for name, start in (("reknit-etcd", _over_etcd(etcd.endpoint)), ("c10d", _over_c10d)):
            with Series(Path(folder) / name, start) as series:
                for host in workers:
                    series.kill_worker(host)
                for host in agents:
                    series.kill_agent(host)
            outcomes.append(series.outcome)
    ours, theirs = outcomes
    return [
        *_figures("a worker killed", ours.workers, theirs.workers, len(workers)),
        *_figures("an agent and its worker killed", ours.agents, theirs.agents, len(agents)),
        *_figures("the agent is back", ours.returns, theirs.returns, len(agents)),
    ]


def _over_etcd(endpoint: str) -> Start:
    def start(folder: Path, name: str) -> Agents:
        return Agents(folder, ["--rdzv-backend=reknit-etcd", f"--rdzv-endpoint={endpoint}", *_common(name)])

    return start


def _over_c10d(folder: Path, name: str) -> Agents:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    own = {host: [f"--rdzv-conf={TIMES},is_host={int(host == 0)}"] for host in HOSTS}
    return Agents(folder, ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", *_common(name)], own)


def _common(name: str) -> list[str]:
    return [f"--rdzv-id={name}", f"--nnodes=2:{len(HOSTS)}", f"--rdzv-conf={TIMES}"]


def _figures(what: str, ours: Sequence[float | None], theirs: Sequence[float | None], tried: int) -> Sequence[Figure]:
    """How many came back, and how long it took those that did."""
    mine, others = ([s for s in some if s is not None] for some in (ours, theirs))
    figures = [
        Figure(
            f"{what}: recovered of {tried}",
            len(mine),
            "c10d",
            len(others),
            goal=tried,
            unit="times",
            at_least=True,
            note=f"each within {DEADLINE:g} s",
        )
    ]
    if mine:
        spread = Spread.of(mine)
        bound = Spread.of(others).median if others else None
        figures.append(Figure(f"{what}: median", spread.median, "c10d", bound, note=f"worst {spread.worst:.0f}"))
    return figures

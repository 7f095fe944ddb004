"""Real torchrun agents on this host with one worker each, who are killed, and whose steps tell what became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("torchrun_worker.py")
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Step:
    """One step of one worker; `t` in CLOCK_MONOTONIC seconds."""

    t: float
    pid: int
    rank: int
    world: int
    master_port: str


@dataclass(frozen=True)
class Moment:
    """When something was done to the agents (CLOCK_MONOTONIC seconds), and which workers there had been."""

    t: float
    pids: frozenset[int] = frozenset()


class Agents:
    """Agents named 0, 1, …; leaving the `with` block ends them and their workers.

    Args:
        folder: for their output and notes.
        options: of torchrun, the same for all.
        own: further options of single agents.
        environment: added to ours.
    """

    def __init__(
        self,
        folder: Path,
        options: Sequence[str],
        own: Mapping[int, Sequence[str]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder, self._options, self._own = folder, options, own or {}
        self._environment = environment or {}
        self._agents: dict[int, subprocess.Popen[bytes]] = {}
        self._workers: set[int] = set()

    def __enter__(self) -> Agents:
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self._agents.values():
            agent.kill()
            agent.wait()
        for name in self._agents:
            self._workers |= {step.pid for step in self.steps(name)}
        for pid in self._workers:
            _kill_worker(pid)

    def start(self, name: int) -> None:
        """Start an agent, or start it again."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHRUN_NOTES": str(self._notes(name)),
            "TORCHRUN_STOP": str(self._stop),
            **self._environment,
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--local-addr=127.0.0.1"]
        command += [
            "--max-restarts=1000",
            "--monitor-interval=0.1",
            *self._options,
            *self._own.get(name, ()),
            str(SCRIPT),
        ]
        with self.log(name).open("ab") as log:
            self._agents[name] = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def now(self) -> Moment:
        """The present, with the workers that there have been until now."""
        pids = {step.pid for name in self._agents for step in self.steps(name)}
        return Moment(time.monotonic(), frozenset(pids))

    def kill_worker(self, name: int) -> Moment:
        """SIGKILL to an agent's worker."""
        before = self.now()
        _kill_worker(self.steps(name)[-1].pid)
        return before

    def kill_agent(self, name: int) -> Moment:
        """SIGKILL to an agent and its worker, as if its host were lost."""
        before = self.now()
        self._agents[name].kill()
        self._agents[name].wait()
        _kill_worker(self.steps(name)[-1].pid)
        return before

    def finish(self, timeout: float) -> dict[int, int | None]:
        """Let all workers end; the agents' exit codes (None: it did not end within `timeout` seconds)."""
        self._stop.touch()
        deadline = time.monotonic() + timeout
        return {name: _wait(agent, deadline - time.monotonic()) for name, agent in self._agents.items()}

    def steps(self, name: int) -> list[Step]:
        """What an agent's workers have done, the oldest first."""
        try:
            text = self._notes(name).read_text()
        except FileNotFoundError:
            return []
        return [Step(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]

    def back(self, names: Iterable[int], world: int, since: Moment) -> float | None:
        """Seconds from then until fresh workers of all these agents had made a step in a world of this size."""
        firsts = [
            next((step.t for step in self.steps(name) if step.pid not in since.pids and step.world == world), None)
            for name in names
        ]
        known = [first for first in firsts if first is not None]
        return max(known) - since.t if len(known) == len(firsts) else None

    def wait_back(self, names: Sequence[int], world: int, since: Moment, timeout: float) -> float | None:
        """The same, as soon as it has happened; None if that takes more than `timeout` seconds, or all agents ended."""
        while (seconds := self.back(names, world, since)) is None and time.monotonic() < since.t + timeout:
            if all(agent.poll() is not None for agent in self._agents.values()):
                return None
            time.sleep(0.05)
        return seconds

    def ranks(self, names: Iterable[int]) -> dict[int, int]:
        """The newest rank of each agent's worker."""
        return {name: self.steps(name)[-1].rank for name in names}

    def log(self, name: int) -> Path:
        """Where an agent's output goes."""
        return self._folder / f"agent{name}.log"

    @property
    def _stop(self) -> Path:
        return self._folder / "stop"

    def _notes(self, name: int) -> Path:
        return self._folder / f"steps{name}.jsonl"


def _wait(agent: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return agent.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None


def _kill_worker(pid: int) -> None:
    """A worker's number may be another process's by now: only one that runs our script is killed."""
    try:
        if str(SCRIPT).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass

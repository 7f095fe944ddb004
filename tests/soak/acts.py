"""What happens to the soak's job beside chaos: planned changes, losses in their middle, and the end of everything.

Each act ends when the job is at full strength again, and fails the soak if that takes too long.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from tests.faults.harness import Event
from tests.soak.evidence import EVERYTHING_DIED, Clean, Strike
from tests.soak.job import Soak
from tests.soak.nodes import JOB, Node
from tests.soak.program import EVERYTHING, HOST, PAIR, WORKER, Act

from reknit.runtime.checkpoint.files import complete_steps

LEAVE_SECONDS, STRIKE_SECONDS = 60.0, 30.0


class Acts:
    """Performs them; `clean` are the stretches in which nobody may have lost anything, `strikes` what was killed."""

    def __init__(self, soak: Soak) -> None:
        self._soak = soak
        self.clean: list[Clean] = []
        self.strikes: list[Strike] = []
        self.planned: list[float] = []  # how long the job was below its full strength, seconds

    def perform(self, act: Act) -> None:
        """One act, from full strength to full strength."""
        self._soak.wait_strength()
        perform: dict[str, Callable[[list[Node]], None]] = {
            HOST: self._host_drains,
            WORKER: self._worker_then_host,
            PAIR: self._two_changes_and_losses,
            EVERYTHING: self._everything_dies,
        }
        perform[act.kind]([self._soak.nodes[number] for number in act.nodes])

    # ---------------------------------------------------------------- planned changes

    def _host_drains(self, nodes: list[Node]) -> None:
        """SIGTERM to an agent; a fresh one takes its place."""
        begun, generation, node = time.monotonic(), self._soak.generation, nodes[0]
        life = node.drain()
        self._soak.wait(lambda: node.run is not life, LEAVE_SECONDS, f"the end of {life.name}, which drains")
        self._back(begun, generation, f"{life.name} drained by SIGTERM")

    def _worker_then_host(self, nodes: list[Node]) -> None:
        """`reknit drain` for one worker, which is not started again, then for its host, whose place a fresh one takes.

        Between the two the worker's mate has nobody to be a replica with.
        """
        begun, generation, node = time.monotonic(), self._soak.generation, nodes[0]
        life, worker = node.run, node.placed()[0]
        self._ask(worker)
        node.leaving = True
        self._ask(worker.rpartition("-")[0])
        self._soak.wait(lambda: node.run is not life, LEAVE_SECONDS, f"the end of {life.name}, which drains")
        self._back(begun, generation, f"{worker}, and then all of {life.name}, drained by command")

    def _ask(self, target: str) -> None:
        command = [sys.executable, "-m", "reknit.runtime.cli", "drain", target, "--job", JOB]
        command += ["--etcd", self._soak.endpoint]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as asked:
            try:
                self._soak.wait(lambda: asked.poll() is not None, LEAVE_SECONDS, f"`reknit drain {target}`")
            finally:
                asked.terminate()
            assert asked.stdout is not None
            said = asked.stdout.read()
        assert asked.returncode == 0, f"`reknit drain {target}` ended with {asked.returncode}: {said}"

    def _back(self, begun: float, generation: int, what: str) -> None:
        """After a planned change that nobody disturbed."""
        self._soak.wait_strength(generation)
        ended = time.monotonic()
        self.clean.append(Clean(begun, ended, what))
        self.planned.append(ended - begun)
        print(f"{what}; full strength again after {ended - begun:.1f} s", flush=True)

    def _two_changes_and_losses(self, nodes: list[Node]) -> None:
        """Two hosts drain, the second as soon as the others can do without it; in each change somebody else dies.

        It dies as it connects to the others, in the generation that the change brings.
        """
        begun, soak = time.monotonic(), self._soak
        for leaving, struck in ((nodes[0], nodes[1]), (nodes[1], nodes[2])):
            generation, life, victim = soak.generation, leaving.run, struck.placed()[-1]
            since = len(struck.run.poll())
            struck.run.fail_at(victim, "connect", 0)
            leaving.drain()
            find = partial(change_of_death, struck.run.events, victim, since)
            change = soak.wait(find, STRIKE_SECONDS, f"{victim} to die in a planned change")
            assert not change["urgent"], f"{victim} died in {change}"
            print(f"{life.name} drains, and {victim} dies in the middle of that", flush=True)
            soak.wait_strength(generation + 1, len(nodes) - 1)
        gone = soak.generation
        soak.wait(lambda: not any(node.leaving for node in nodes), LEAVE_SECONDS, "the end of both who drain")
        soak.wait_strength(min(gone, soak.generation - 1))
        print(f"full strength again {time.monotonic() - begun:.1f} s after the first of the two", flush=True)

    # ---------------------------------------------------------------- everything dies

    def _everything_dies(self, nodes: list[Node]) -> None:
        """SIGKILL to all agents and workers at one moment; all start again, and go on from the newest checkpoint."""
        soak = self._soak
        before = soak.wait(lambda: complete_steps(soak.checkpoints), STRIKE_SECONDS, "a checkpoint")[0]
        generation, step = soak.generation, max(node.run.step for node in nodes)
        workers = {name: pid for node in nodes for name, pid in node.workers().items()}
        pids = [pid for node in nodes for pid in (node.run.pid, *node.run.processes())]
        moment = time.monotonic()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        for node in nodes:
            node.run.end()
        newest = complete_steps(soak.checkpoints)[0]
        assert newest >= before, f"there was a checkpoint of step {before}, and now the newest is {newest}"
        soak.wait_strength(generation)
        seconds = time.monotonic() - moment
        self.strikes.append(
            {"t": moment, "kind": EVERYTHING_DIED, "agent": "", "workers": workers, "generation": generation}
            | {"outcome": "recovered", "seconds": seconds, "step": newest}
        )
        print(
            f"everything died around step {step}, and went on from the checkpoint of step {newest}; "
            f"full strength again after {seconds:.1f} s",
            flush=True,
        )


def change_of_death(events: Sequence[Event], worker: str, since: int) -> Event | None:
    """The plan that was the newest, as its agent saw it, when a worker died after position `since`; None: it lives."""
    died = [e["t"] for e in events[since:] if e["event"] == "worker_died" and e["worker"] == worker]
    plans = (e for e in events if e["event"] == "plan" and e["t"] < min(died, default=0.0))
    return max(plans, key=lambda e: float(e["t"]), default=None)  # a death is told after its cause is known

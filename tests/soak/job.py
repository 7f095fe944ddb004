"""The soak's job, and all that is seen of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.faults.harness import Event
from tests.soak.footprints import Footprints, Growth
from tests.soak.nodes import JOB, NODES, Node

HANG_SECONDS, STEP_MS = 3.0, 50.0
CHECKPOINT_EVERY = 40  # steps
KINDS = ("kill", "stop", "node")
EVERY_SECONDS = 5.0
STRENGTH_SECONDS = 120.0  # a fresh node imports torch first, on a machine that may be busy


class Soak:
    """Three nodes on one etcd.  The constructor starts nothing, `start` does."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        options = ("--etcd", endpoint, "--job", JOB, "--hang", f"{HANG_SECONDS:g}")
        self.checkpoints = folder / "checkpoints"
        arguments = ["--step-ms", f"{STEP_MS:g}", "--checkpoint", str(self.checkpoints)]
        arguments += ["--every", str(CHECKPOINT_EVERY)]
        self.nodes = [Node(folder, number, options, arguments) for number in range(NODES)]
        self.endpoint, self._report = endpoint, folder / "chaos.json"
        self._footprints = Footprints()
        self._looked = 0.0

    def start(self) -> None:
        """Start all nodes; returns when all replicas train."""
        for node in self.nodes:
            node.keep()
        self.wait_strength()

    @property
    def generation(self) -> int:
        """The newest one that anybody has seen."""
        return max((life.generation for node in self.nodes for life in node.lives), default=0)

    def wait_strength(self, beyond: int = 0, replicas: int = NODES) -> None:
        """Wait until a step was committed in the newest generation, with so many replicas, if it is after `beyond`."""
        self.wait(lambda: self._is_whole(beyond, replicas), STRENGTH_SECONDS, f"{replicas} replicas to train")

    def _is_whole(self, beyond: int, replicas: int) -> bool:
        plans = [plan for node in self.nodes for plan in node.run.of("plan")]
        newest = max(plans, key=lambda plan: int(plan["generation"]), default=None)
        if newest is None or newest["replicas"] < replicas or newest["generation"] <= beyond:
            return False
        return any(True for node in self.nodes for _ in node.run.of("committed", generation=newest["generation"]))

    def wait(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """Wait until `condition()` is true, and return its value; tend the job meanwhile."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            if time.monotonic() > deadline:
                self.nodes[0].run.fail(f"waited {seconds:g} s in vain for {what}")
            time.sleep(0.05)
            self.tend()
        return value

    def tend(self, more: Mapping[int, str] = MappingProxyType({})) -> None:
        """Start again what was killed or has drained, and look at what lives and `more`, once a second."""
        for node in self.nodes:
            node.keep()
            node.run.poll()
        now = time.monotonic()
        if now - self._looked >= 1.0:
            self._looked = now
            pids = {pid: what for node in self.nodes for pid, what in node.processes().items()}
            self._footprints.look({**pids, **more}, now)

    def strike(self, seconds: float, seed: int) -> list[dict[str, Any]]:
        """Run chaos to its end; what it struck.  Fails if the job did not recover from something."""
        command = [sys.executable, "-m", "reknit.runtime.cli", "chaos", "--job", JOB, "--etcd", self.endpoint]
        command += ["--every", f"{EVERY_SECONDS:g}s", "--kinds", ",".join(KINDS), "--for", f"{seconds:g}s"]
        command += ["--deadline", "1m", "--seed", str(seed), "--json", str(self._report)]
        with subprocess.Popen(command) as chaos:
            try:
                while chaos.poll() is None:
                    self.tend({chaos.pid: "chaos"})
                    time.sleep(0.1)
            finally:
                chaos.terminate()
        report: dict[str, Any] = json.loads(self._report.read_text())
        if report["exit"]:
            self.nodes[0].run.fail(report["verdict"])
        return list(report["strikes"])

    def finish(self) -> int:
        """Let the job end well; its last step."""
        last = self.nodes[0].run.stop_soon()
        codes = [node.run.wait_end(60.0) for node in self.nodes]
        assert codes == [0] * NODES, f"the agents ended with {codes}"
        return last

    def events(self) -> list[Event]:
        """All events of all nodes, in order of time."""
        events = [event for node in self.nodes for event in node.poll()]
        return sorted(events, key=lambda event: float(event["t"]))

    def growths(self) -> list[Growth]:
        """How every process has grown that lived for long enough."""
        return self._footprints.growths()

    def leftovers(self) -> dict[int, str]:
        """Processes of the job that still run."""
        return {pid: what for node in self.nodes for life in node.lives for pid, what in life.processes().items()}

    def end(self) -> None:
        """Kill whatever is left."""
        for node in self.nodes:
            node.end()

"""`python -m tests.soak`: a job of three nodes under `reknit chaos` for ten minutes, and then the books are audited.

Each node is an agent with two workers, one of each pipeline stage; all share one etcd.  Chaos kills workers, stops
workers and kills whole nodes; a node that was killed is started again, as its supervisor would.  At the end all must
have recovered, every invariant must hold, and nothing may have grown.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from tests.faults import invariants, problem
from tests.faults.harness import START_SECONDS, Event
from tests.soak.evidence import commits_of, complete, gap_of
from tests.soak.footprints import Footprints, Growth, complaints
from tests.soak.nodes import JOB, PIPE, Node

from reknit.rendezvous.store.embedded import EmbeddedEtcd

NODES, HANG_SECONDS, STEP_MS = 3, 3.0, 50.0
DEATH_SECONDS = 5.0  # as in all fault tests, from a death to the next commit
KINDS = ("kill", "stop", "node")
EVERY_SECONDS, LEAST_PER_MINUTE = 6.0, 6
MOST_MEMORY = 16.0  # megabytes
# Whoever hosts a group's store holds a few more; this is far less than one for each generation of a long life.
MOST_DESCRIPTORS, MOST_THREADS = 8, 8


class Soak:
    """The job and all that is seen of it."""

    def __init__(self, folder: Path, etcd: EmbeddedEtcd) -> None:
        options = ("--etcd", etcd.endpoint, "--job", JOB, "--hang", f"{HANG_SECONDS:g}")
        self.nodes = [Node(folder, number, NODES, options, STEP_MS) for number in range(NODES)]
        self._etcd, self._report = etcd, folder / "chaos.json"
        self._footprints = Footprints()
        self._looked = 0.0

    def start(self) -> None:
        """Start all nodes; returns when all replicas train."""
        for node in self.nodes:
            node.keep()
        self.wait_strength()

    def wait_strength(self) -> None:
        """Wait until a step was committed in the newest generation, with all replicas."""
        deadline = time.monotonic() + START_SECONDS
        while not self._is_whole():
            if time.monotonic() > deadline:
                self.nodes[0].run.fail(f"not all {NODES} replicas train after {START_SECONDS:g} s")
            time.sleep(0.1)
            self.tend()

    def _is_whole(self) -> bool:
        plans = [plan for node in self.nodes for plan in node.run.of("plan")]
        newest = max(plans, key=lambda plan: int(plan["generation"]), default=None)
        if newest is None or newest["replicas"] < NODES:
            return False
        return any(True for node in self.nodes for _ in node.run.of("committed", generation=newest["generation"]))

    def tend(self, more: Mapping[int, str] = MappingProxyType({})) -> None:
        """Start again what was killed, and look at what lives and `more`, once a second."""
        for node in self.nodes:
            node.keep()
            node.run.poll()
        now = time.monotonic()
        if now - self._looked >= 1.0:
            self._looked = now
            pids = {pid: what for node in self.nodes for pid, what in node.processes().items()}
            self._footprints.look({**pids, **more}, now)

    def strike(self, seconds: float, seed: int) -> dict[str, Any]:
        """Run chaos to its end; its report.  Fails if the job did not recover from something."""
        command = [sys.executable, "-m", "reknit.runtime.cli", "chaos", "--job", JOB, "--etcd", self._etcd.endpoint]
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
        return report

    def finish(self) -> int:
        """Let the job end well; its last step."""
        last = self.nodes[0].run.stop_soon()
        codes = [node.run.wait_end(60.0) for node in self.nodes]
        assert codes == [0] * NODES, f"the agents ended with {codes}"
        return last

    def events(self) -> list[Event]:
        return [event for node in self.nodes for event in node.poll()]

    def growths(self) -> list[Growth]:
        return self._footprints.growths()

    def leftovers(self) -> dict[int, str]:
        """Processes of the job that still run."""
        return {pid: what for node in self.nodes for life in node.lives for pid, what in life.processes().items()}

    def end(self) -> None:
        for node in self.nodes:
            node.end()


def audit(soak: Soak, report: dict[str, Any], last: int, minutes: float) -> list[str]:
    """What is wrong; prints the tables."""
    events, strikes = soak.events(), report["strikes"]
    print_gaps(strikes, events)
    growths = soak.growths()
    print_growths(growths)
    problems = []
    if len(strikes) < LEAST_PER_MINUTE * minutes:
        problems.append(f"only {len(strikes)} faults in {minutes:g} minutes")
    problems += complaints(growths, MOST_MEMORY, MOST_DESCRIPTORS, MOST_THREADS)
    if left := soak.leftovers():
        problems.append(f"left behind: {left}")
    begun = time.monotonic()
    whole = complete(events, strikes, problem.samples_of, problem.MICRO_BATCH)
    try:
        invariants.check(whole, problem.samples_of, waits=HANG_SECONDS + DEATH_SECONDS)
        invariants.finished_alike(events, last, NODES * PIPE)
    except AssertionError as error:
        problems.append(f"an invariant is broken: {error}")
    print(f"\nAll invariants of {last} steps, in {len(events)} events, looked at in {time.monotonic() - begun:.0f} s.")
    return problems


def print_gaps(strikes: Sequence[dict[str, Any]], events: Sequence[Event]) -> None:
    commits = commits_of(events)
    print("\nfrom the strike to the next committed step, in a newer generation")
    print(f"{'kind':6}{'faults':>8}{'median':>10}{'worst':>10}")
    for kind in KINDS:
        mine = [gap for strike in strikes if strike["kind"] == kind and (gap := gap_of(strike, commits)) is not None]
        spread = f"{median(mine):8.2f} s{max(mine):8.2f} s" if mine else f"{'-':>10}{'-':>10}"
        print(f"{kind:6}{len(mine):8}{spread}")


def print_growths(growths: Sequence[Growth]) -> None:
    print("\ngrowth in settled life, worst of each kind of process")
    print(f"{'':8}{'judged':>8}{'longest':>10}{'memory':>12}{'descriptors':>14}{'threads':>10}")
    for what in sorted({growth.what.split()[0] for growth in growths}):
        mine = [growth for growth in growths if growth.what.split()[0] == what]
        memory, longest = max(g.memory for g in mine), max(g.seconds for g in mine)
        descriptors, threads = max(g.descriptors for g in mine), max(g.threads for g in mine)
        print(f"{what:8}{len(mine):8}{longest:8.0f} s{memory:9.1f} MB{descriptors:14}{threads:10}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="of chaos (default 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of chaos (default 0)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left behind
    folder = Path(tempfile.mkdtemp(prefix="reknit-soak-"))
    print(f"{NODES} nodes of {PIPE} workers; all that they say lies in {folder}", flush=True)
    with EmbeddedEtcd() as etcd:
        soak = Soak(folder, etcd)
        try:
            soak.start()
            report = soak.strike(arguments.minutes * 60, arguments.seed)
            soak.wait_strength()
            last = soak.finish()
        finally:
            soak.end()
    problems = audit(soak, report, last, arguments.minutes)
    for sentence in problems:
        print(f"WRONG: {sentence}")
    print("FAILED" if problems else "Nothing lost, nothing repeated, nothing grown.")
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

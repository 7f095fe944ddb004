"""What an agent itself costs: memory and processor beside four workers while nothing happens, and how soon it is ready.

Ready means that its record is in etcd.  That is measured with a sidecar, which starts nobody: torch's import is not the
agent's.  Nothing but the agent's own process is counted, not its warm process, not its workers.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import SCRIPTS, Processes
from tests.bench.table import Figure

from reknit.rendezvous.keys import Keys
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore

WORKERS = 4
SETTLE_SECONDS = 3.0  # after the last step, until what follows it has been done
START_SECONDS = 120.0


@dataclass(frozen=True)
class Use:
    """What the kernel says that a process uses: processor seconds so far, and megabytes."""

    cpu: float
    resident: float
    private: float

    @classmethod
    def of(cls, pid: int) -> Use:
        """Of a living process."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
        private = sizes["Private_Clean"] + sizes["Private_Dirty"]
        return cls(ticks / os.sysconf("SC_CLK_TCK"), sizes["Rss"] / 1024, private / 1024)


@dataclass(frozen=True)
class Start:
    """One start of an agent: seconds, and seconds of processor, until its record was in etcd."""

    seconds: float
    cpu: float


def start_agent(store: EtcdStore, endpoint: str, folder: Path, name: str) -> tuple[subprocess.Popen[bytes], Start]:
    """Start a sidecar, and wait for its record.  RuntimeError if that does not come."""
    options = ["--etcd", endpoint, "--job", name, "--agent", name, "--replicas", str(WORKERS)]
    command = [sys.executable, "-m", "reknit.runtime.cli", "agent", *options, "--socket", str(folder / name / "socket")]
    key = Keys(name).agent(name)
    with (folder / f"{name}.log").open("wb") as log:
        begun = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    while store.get(key) is None:
        if process.poll() is not None or time.monotonic() - begun > START_SECONDS:
            process.kill()
            process.wait()
            raise RuntimeError(f"the agent is not ready:\n{(folder / f'{name}.log').read_text()[-2000:]}")
        time.sleep(0.002)
    return process, Start(time.monotonic() - begun, Use.of(process.pid).cpu)


def starts(count: int) -> list[Start]:
    """Start an agent `count` times, each in a job of its own."""
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as name, EmbeddedEtcd() as etcd:
        store = EtcdStore(etcd.endpoint)
        found = []
        try:
            for number in range(count):
                process, start = start_agent(store, etcd.endpoint, Path(name), f"start{number}")
                process.send_signal(signal.SIGINT)
                process.wait()
                found.append(start)
        finally:
            store.close()
    return found


def idle(seconds: float) -> tuple[Use, float]:
    """What an agent beside four workers that stay in one step uses, and its share of a core."""
    with tempfile.TemporaryDirectory(prefix="reknit-bench-") as name, Processes(Path(name)) as processes:
        agent = processes.reknit("job", SCRIPTS / "idle.py", replicas=WORKERS, events=True)
        events, deadline = processes.events("job"), time.monotonic() + START_SECONDS
        while not events.exists() or events.read_text().count('"event":"committed"') < 3 * WORKERS:
            processes.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the workers have not trained within {START_SECONDS:g} s")
            time.sleep(0.1)
        time.sleep(SETTLE_SECONDS)
        before, begun = Use.of(agent.pid), time.monotonic()
        time.sleep(seconds)
        after = Use.of(agent.pid)
        return after, (after.cpu - before.cpu) / (time.monotonic() - begun)


def run(quick: bool) -> Sequence[Figure]:
    """The figures, beside what they may be."""
    use, share = idle(10 if quick else 60)
    found = starts(3 if quick else 9)
    seconds = statistics.median(start.seconds for start in found)
    cpu = statistics.median(start.cpu for start in found)
    return [
        Figure("resident", use.resident, goal=70, unit="MB", note=f"of that private: {use.private:.0f} MB"),
        Figure(
            "of a core, while nothing happens", 100 * share, goal=1, unit="%", note=f"{WORKERS} workers in one step"
        ),
        Figure(
            "start to registered", 1000 * seconds, goal=700, note=f"{1000 * cpu:.0f} ms of processor, {len(found)} x"
        ),
    ]

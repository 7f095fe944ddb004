"""How soon a job trains at a new size after `reknit scale`, as long as there are warm spares.

One standalone host of four replicas of one worker, about 35 ms a step; it is scaled down and up again and again.  From
the command's write to the first step committed in a generation of the new size.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench.gap import SCRIPT, STEP_MS, Run, wait
from tests.bench.processes import Processes
from tests.bench.table import Figure, Spread

from reknit.rendezvous.keys import Keys
from reknit.rendezvous.store.embedded import EmbeddedEtcd
from reknit.rendezvous.store.etcd import EtcdStore
from reknit.runtime.operating.scale import scale

REPLICAS, FEW = 4, 2
JOB = "bench"
GOAL = 1000.0  # ms
CALM_STEPS = 10


def collect(count: int) -> list[float]:
    """Seconds that each change took: down, up, down, …"""
    with (
        tempfile.TemporaryDirectory(prefix="reknit-bench-") as folder,
        EmbeddedEtcd() as etcd,
        Processes(Path(folder)) as processes,
    ):
        options = ("--etcd", etcd.endpoint, "--job", JOB, "--workers", str(REPLICAS))
        steps = ("--steps", "1000000", "--step-ms", str(STEP_MS))
        processes.reknit("job", SCRIPT, *steps, replicas=REPLICAS, events=True, options=options)
        run, store = Run(processes.events("job")), EtcdStore(etcd.endpoint)
        try:
            return [_change(run, store, (FEW, REPLICAS)[number % 2], processes) for number in range(count)]
        finally:
            store.close()


def _change(run: Run, store: EtcdStore, size: int, processes: Processes) -> float:
    def trained(replicas: int, since: float) -> list[float]:
        full = {e["generation"] for e in run.events if e["event"] == "plan" and e["replicas"] == replicas}
        committed = [e for e in run.events if e["event"] == "committed" and e["t"] > since]
        return [float(e["t"]) for e in committed if e["version"][0] in full]

    before = REPLICAS + FEW - size
    begun = time.monotonic() if run.events else 0.0
    wait(run, lambda: len(trained(before, begun)) > CALM_STEPS * before, processes.check)
    asked = time.monotonic()
    scale(store, Keys(JOB), size)
    wait(run, lambda: bool(trained(size, asked)), processes.check)
    return min(trained(size, asked)) - asked


def run(quick: bool) -> list[Figure]:
    """Both directions apart."""
    took = collect(4 if quick else 20)
    down, up = Spread.of(took[::2]), Spread.of(took[1::2])
    return [
        Figure(f"to a step with {FEW} replicas of {REPLICAS}, median", down.median, "a step", STEP_MS, GOAL),
        Figure("  worst", down.worst, goal=GOAL),
        Figure(f"to a step with {REPLICAS} replicas again, from spares, median", up.median, "a step", STEP_MS, GOAL),
        Figure("  worst", up.worst, goal=GOAL),
    ]

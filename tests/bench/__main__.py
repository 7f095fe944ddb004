"""`python tests/bench [NAME ...]`: measure how fast reknit recovers and what it costs, beside what bounds each figure.

Everything printed was measured in this run, on this machine; nothing else should run on it meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

if not __package__:  # run as a folder: then only the folder itself is on the path
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from tests.bench import agent_cost, checkpoints, gap, goodput, joiner, losses, overhead, reinit, scaling, torchrun
from tests.bench.table import Figure, render

BENCHES: dict[str, tuple[str, Callable[[bool], Sequence[Figure]]]] = {
    "gap": ("SIGKILL on 3 data-parallel replicas", gap.run),
    "node": ("SIGKILL on an agent and its worker, one of 3 data-parallel replicas on 3 agents", losses.run_node),
    "hang": (f"SIGSTOP on one of 3 data-parallel replicas, --hang {losses.HANG_SECONDS:g}", losses.run_hang),
    "scale": ("`reknit scale` on 4 data-parallel replicas that become 2, and 4 again", scaling.run),
    "joiner": ("how long the others stand still when a worker joins 2 replicas, by the size of the state", joiner.run),
    "goodput": (f"SIGKILL on one of 3 data-parallel replicas every {goodput.EVERY_SECONDS:g} s", goodput.run),
    "checkpoint": ("a step, 2 replicas, with checkpoints and without, by the size of the state", checkpoints.run),
    "one-stage": ("a step, one stage x 2 replicas, against DistributedDataParallel over gloo", overhead.one_stage),
    "two-stages": ("a step, 2 stages x 2 replicas, against the same schedule over plain gloo", overhead.two_stages),
    "overlap": ("the reduction hides behind backward, 2 replicas", overhead.overlap),
    "torchrun": ("torchrun on 3 agents, its rendezvous in etcd (reknit-etcd) against its own (c10d)", torchrun.run),
    "agent": (f"an agent's own process, beside {agent_cost.WORKERS} workers", agent_cost.run),
    "reinit": ("a communicator's interrupt, close and connect, nothing else", reinit.run),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that it works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHES)
    if unknown:
        parser.error(f"there is no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left behind
    sections: dict[str, Sequence[Figure]] = {}
    for name in arguments.names or BENCHES:
        begun = time.monotonic()
        print(f"{name} ...", end=" ", flush=True)
        sections[name] = BENCHES[name][1](arguments.quick)
        print(f"{time.monotonic() - begun:.0f} s", flush=True)
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(render([(BENCHES[name][0], figures) for name, figures in sections.items()]))
    if arguments.json:
        plain = {name: [figure.plain() for figure in figures] for name, figures in sections.items()}
        arguments.json.write_text(json.dumps(plain, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

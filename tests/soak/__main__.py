"""`python -m tests.soak`: a job of three nodes for ten minutes of whatever may happen, and then the books are audited.

Each node is an agent with two workers, one of each pipeline stage; all share one etcd.  In turns: hosts and workers
drain; two hosts drain in a row, and somebody dies in the middle of each change; everything dies, and goes on from the
newest checkpoint; and `reknit chaos` kills workers, stops workers and kills whole nodes.  A node that was killed, or
has drained, is started again, as its supervisor would.  At the end all must have recovered, every invariant must hold
from one checkpoint that the job went back to until the next, and nothing may have grown.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tests.faults import invariants, problem
from tests.faults.harness import Event
from tests.soak.acts import Acts
from tests.soak.evidence import EVERYTHING_DIED, Strike, commits_of, complete, disturbances, gap_of, wrong_returns
from tests.soak.footprints import Growth, complaints
from tests.soak.job import HANG_SECONDS, KINDS, Soak
from tests.soak.nodes import NODES, PIPE
from tests.soak.program import CHAOS, program

from reknit.rendezvous.store.embedded import EmbeddedEtcd

DEATH_SECONDS = 5.0  # as in all fault tests, from a death to the next commit
LEAST_PER_MINUTE = 6  # of chaos
MOST_MEMORY = 16.0  # megabytes
# Whoever hosts a group's store holds a few more; this is far less than one for each generation of a long life.
MOST_DESCRIPTORS, MOST_THREADS = 8, 8


def audit(soak: Soak, acts: Acts, chaos: Sequence[Strike], minutes: float, last: int) -> list[str]:
    """What is wrong; prints the tables.  `minutes`: of chaos; `last`: the job's last step."""
    events, strikes = soak.events(), sorted([*chaos, *acts.strikes], key=lambda strike: float(strike["t"]))
    print_gaps(strikes, events)
    print(f"\n{len(acts.planned)} planned changes; back at full strength, worst: {max(acts.planned, default=0):.1f} s")
    growths = soak.growths()
    print_growths(growths)
    problems = disturbances(events, acts.clean) + wrong_returns(events, acts.strikes)
    if len(chaos) < LEAST_PER_MINUTE * minutes:
        problems.append(f"only {len(chaos)} faults in {minutes:.1f} minutes")
    problems += complaints(growths, MOST_MEMORY, MOST_DESCRIPTORS, MOST_THREADS)
    if left := soak.leftovers():
        problems.append(f"left behind: {left}")
    begun = time.monotonic()
    whole = complete(events, strikes, problem.samples_of, problem.MICRO_BATCH)
    try:
        final = invariants.check_stretches(whole, problem.samples_of, waits=HANG_SECONDS + DEATH_SECONDS)
        invariants.finished_alike(final, last, NODES * PIPE)
    except AssertionError as error:
        problems.append(f"an invariant is broken: {error}")
    print(f"\nAll invariants of {last} steps, in {len(events)} events, looked at in {time.monotonic() - begun:.0f} s.")
    return problems


def print_gaps(strikes: Sequence[Strike], events: Sequence[Event]) -> None:
    commits = commits_of(events)
    print("\nfrom the strike to the next committed step, in a newer generation")
    print(f"{'kind':6}{'faults':>8}{'median':>10}{'worst':>10}")
    for kind in (*KINDS, EVERYTHING_DIED):
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
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="about how long (default 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what happens (default 0)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left behind
    folder = Path(tempfile.mkdtemp(prefix="reknit-soak-"))
    print(f"{NODES} nodes of {PIPE} workers; all that they say lies in {folder}", flush=True)
    strikes: list[Strike] = []
    planned = program(arguments.minutes, NODES, arguments.seed)
    with EmbeddedEtcd() as etcd:
        soak = Soak(folder, etcd.endpoint)
        acts = Acts(soak)
        try:
            soak.start()
            for number, act in enumerate(planned):
                if act.kind == CHAOS:
                    strikes += soak.strike(act.seconds, arguments.seed + number)
                else:
                    acts.perform(act)
            soak.wait_strength()
            last = soak.finish()
        finally:
            soak.end()
    problems = audit(soak, acts, strikes, sum(act.seconds for act in planned) / 60, last)
    for sentence in problems:
        print(f"WRONG: {sentence}")
    print("FAILED" if problems else "Nothing lost, nothing repeated, nothing grown.")
    if not problems:
        shutil.rmtree(folder, ignore_errors=True)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

"""How long a communicator takes from the notice of a change to its first collective in the next group.

Every rank is blocked in all-reduces when it is told; then it interrupts, closes, connects anew and reduces once.  No
agent, no etcd, no model: what is left is this project's own floor.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.bench.processes import ROOT
from tests.bench.table import Figure, Spread

SIZES = (2, 4, 8)
GOALS = {8: 60.0}
_WORKER = ROOT / "tests" / "integration" / "communicator_worker.py"


class Rank:
    """A process of communicator_worker.py."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, str(_WORKER)], stdin=pipe, stdout=pipe, text=True)

    def tell(self, action: str, *, at_once: bool = False, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": action, "with": arguments, "at_once": at_once}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def done(self, action: str, ended: str = "") -> dict[str, Any]:
        """The answer to `action`; what failed in the group that was ended comes before it."""
        while (answer := self.answer()).get("done") != action:
            if "error" in answer and not answer["message"].startswith(f"group {ended},"):
                raise RuntimeError(answer["message"])
        return answer


@contextmanager
def _ranks(count: int) -> Iterator[list[Rank]]:
    ranks = [Rank() for _ in range(count)]
    try:
        for rank in ranks:
            rank.answer()
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.wait()


def _once(ranks: list[Rank], address: Any, old: str, new: str) -> float:
    """One reinit of a group that is busy; seconds from the notice to the last rank's first all-reduce."""
    for rank in ranks:
        rank.tell("all_reduce_until_it_fails", name=old)
    for rank in ranks:
        while "begun" not in rank.answer():
            pass
    time.sleep(0.02)
    notice = time.monotonic()
    for number, rank in enumerate(ranks):
        rank.tell("interrupt", at_once=True, name=old)
        rank.tell("close", name=old)
        rank.tell("connect", name=new, address=address, rank=number, size=len(ranks))
        rank.tell("all_reduce", name=new)
    return max(float(rank.done("all_reduce", old)["t"]) for rank in ranks) - notice


def run(quick: bool) -> list[Figure]:
    """For each size, all ranks on this machine."""
    times = 5 if quick else 25
    figures = []
    with _ranks(max(SIZES)) as everybody:
        everybody[0].tell("serve")
        address = everybody[0].done("serve")["result"]
        for size in SIZES:
            ranks = everybody[:size]
            for number, rank in enumerate(ranks):
                rank.tell("connect", name=f"{size}/0", address=address, rank=number, size=size)
            for rank in ranks:
                rank.done("connect")
            taken = Spread.of(_once(ranks, address, f"{size}/{i}", f"{size}/{i + 1}") for i in range(times))
            note = f"p90 {taken.p90:.0f}, worst {taken.worst:.0f} of {times}"
            figures.append(Figure(f"{size} ranks, median", taken.median, goal=GOALS.get(size), note=note))
    return figures

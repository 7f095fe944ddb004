"""Memory, descriptors and threads of processes over their lives, and whether they grow."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

SETTLED_SECONDS = 10.0  # of a process's life: until then it imports, builds, and meets the others
LONG_SECONDS = 20.0  # observed after that: whoever lives shorter is not judged


@dataclass(frozen=True)
class Footprint:
    """One look at one process: `t` monotonic, `memory` resident megabytes."""

    t: float
    memory: float
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Growth:
    """From the first third of a process's settled life to its last."""

    what: str
    pid: int
    seconds: float
    memory: float
    descriptors: int
    threads: int


class Footprints:
    """All looks so far, by process and by what it was then: one that becomes another thing begins another life."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], list[Footprint]] = defaultdict(list)

    def look(self, processes: Mapping[int, str], now: float) -> None:
        """Look at some processes: what each is, by its id."""
        for pid, what in processes.items():
            footprint = look(pid, now)
            if footprint is not None:
                self._seen[pid, what].append(footprint)

    def growths(self) -> list[Growth]:
        """Of all processes that lived long enough, the longest life first."""
        found = [growth for (pid, what), seen in self._seen.items() if (growth := growth_of(what, pid, seen))]
        return sorted(found, key=lambda growth: -growth.seconds)


def look(pid: int, now: float) -> Footprint | None:
    """What the kernel says; None if the process has ended."""
    folder = Path("/proc") / str(pid)
    try:
        pages = int((folder / "statm").read_text().split()[1])
        descriptors, threads = (len(os.listdir(folder / kind)) for kind in ("fd", "task"))
    except (OSError, IndexError):
        return None
    return Footprint(now, pages * os.sysconf("SC_PAGESIZE") / 1e6, descriptors, threads)


def growth_of(what: str, pid: int, seen: Sequence[Footprint]) -> Growth | None:
    """How a process grew; None if it was not observed for long enough to say.

    Medians are compared: for a moment an agent lacks a worker, or a worker has not closed its old groups yet.
    """
    settled = [footprint for footprint in seen if footprint.t >= seen[0].t + SETTLED_SECONDS]
    if not settled or settled[-1].t - settled[0].t < LONG_SECONDS:
        return None
    third = len(settled) // 3
    first, last = settled[:third], settled[-third:]
    return Growth(
        what,
        pid,
        settled[-1].t - settled[0].t,
        median(f.memory for f in last) - median(f.memory for f in first),
        round(median(f.descriptors for f in last) - median(f.descriptors for f in first)),
        round(median(f.threads for f in last) - median(f.threads for f in first)),
    )


def complaints(growths: Iterable[Growth], memory: float, descriptors: int, threads: int) -> list[str]:
    """A sentence for each process that grew by more than so many megabytes, descriptors or threads."""
    return [
        f"the {growth.what} {growth.pid} grew in {growth.seconds:.0f} s by {growth.memory:.1f} MB, "
        f"{growth.descriptors} descriptors, {growth.threads} threads"
        for growth in growths
        if growth.memory > memory or growth.descriptors > descriptors or growth.threads > threads
    ]

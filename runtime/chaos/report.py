"""What chaos did and what came of it: sentences, the table per kind, and the exit code.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from reknit.rendezvous.records import Member
from reknit.runtime.chaos.choice import KILL, NODE, STOP, Fault
from reknit.runtime.chaos.situation import join_names

OPEN, RECOVERED, FAILED = "open", "recovered", "failed"
_VERBS = {KILL: "killed", STOP: "stopped", NODE: "killed node"}


@dataclass(frozen=True)
class Strike:
    """One fault: `t` was taken right before the first signal (monotonic seconds), `generation` was the newest then.

    `outcome` OPEN: chaos ended before it was known.  `seconds`: until all that had a place trained in a newer
    generation, without the victims; None if they did not.
    """

    t: float
    fault: Fault
    generation: int
    outcome: str = OPEN
    seconds: float | None = None

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        workers = {member.worker_id: member.pid for member in self.fault.workers}
        told = {"t": self.t, "kind": self.fault.kind, "agent": self.fault.agent, "workers": workers}
        return {**told, "generation": self.generation, "outcome": self.outcome, "seconds": self.seconds}


def describe(fault: Fault) -> str:
    """What was done, as a sentence's predicate and object."""
    who = join_names(_with_pid(member) for member in fault.workers)
    return f"{_VERBS[fault.kind]} {fault.agent}: {who}" if fault.agent else f"{_VERBS[fault.kind]} {who}"


def _with_pid(member: Member) -> str:
    return f"{member.worker_id} (process {member.pid})"


def table(strikes: Sequence[Strike], kinds: Sequence[str]) -> str:
    """A row per kind: how many faults, how many recovered, the time until training again."""
    rows = [("kind", "faults", "recovered", "median", "worst")]
    for kind in kinds:
        mine = [strike for strike in strikes if strike.fault.kind == kind]
        times = [strike.seconds for strike in mine if strike.seconds is not None]
        spread = (_seconds(median(times)), _seconds(max(times))) if times else ("-", "-")
        rows.append((kind, str(len(mine)), str(sum(s.outcome == RECOVERED for s in mine)), *spread))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(cells)))
    return "\n".join(line.rstrip() for line in lines)


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def verdict(strikes: Sequence[Strike], why_none: str) -> tuple[int, str]:
    """The exit code, and the sentence on the whole; `why_none` says why nothing was struck, if nothing was."""
    failed = sum(strike.outcome == FAILED for strike in strikes)
    unknown = sum(strike.outcome == OPEN for strike in strikes)
    if failed:
        return 1, f"the job did not recover from {failed} of {len(strikes)} faults"
    if not strikes:
        return 1, f"nothing was struck: {why_none or 'there was no time for it'}"
    rest = f"; chaos ended before it was seen of {unknown}" if unknown else ""
    return 0, f"the job recovered from {len(strikes) - unknown} of {len(strikes)} faults{rest}"

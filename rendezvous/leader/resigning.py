"""When a leader whose own code fails again and again makes way for another: a pure decision.

A term that ends by an error of ours is begun anew, which takes everything from the store again.  Where that does not
help, perhaps it does on another host, with another version; and if it fails there too, the office goes round slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

FAILURES = 3  # terms in a row, none of which has done a whole step
FIRST_REST, LONGEST_REST = 2.0, 60.0  # seconds for which the others may take the office; doubles


@dataclass(frozen=True)
class Resigning:
    """`failures`: terms in a row that ended by an error.  `resigned`: how often in a row this has ended an office."""

    failures: int = 0
    resigned: int = 0

    def after(self, failed: bool, steps: int) -> Resigning:
        """After a term that has done so many whole `steps`, and then `failed`, or just ended."""
        if steps:
            return Resigning(int(failed))
        return Resigning(self.failures + failed, self.resigned)

    @property
    def rest(self) -> float | None:
        """For how long (seconds) to leave the office to others, from now on; None: go on leading."""
        if self.failures < FAILURES:
            return None
        return min(FIRST_REST * 2.0**self.resigned, LONGEST_REST)

    def resign(self) -> Resigning:
        """After the office was given up."""
        return Resigning(0, self.resigned + 1)

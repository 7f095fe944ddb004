"""Figures, and the table that they are printed in: each beside what bounds it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Spread:
    """Many measurements of one thing, in milliseconds."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Spread:
        """From seconds."""
        return cls(tuple(1000 * value for value in seconds))

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def p90(self) -> float:
        return sorted(self.values)[math.ceil(0.9 * len(self.values)) - 1]

    @property
    def worst(self) -> float:
        return max(self.values)

    @property
    def error(self) -> float:
        """Standard error of the median, from the spread between the quartiles (robust against outliers)."""
        ordered = sorted(self.values)
        quarter = len(ordered) // 4
        return 1.25 * (ordered[-1 - quarter] - ordered[quarter]) / 1.35 / math.sqrt(len(ordered))


@dataclass(frozen=True)
class Figure:
    """One line of the table: the figure, what it is to be seen beside, how large it may be.

    In milliseconds, or in `unit`; `goal` is the most that it may be, or the least, if `at_least`.
    """

    what: str
    value: float
    bounded_by: str = ""
    bound: float | None = None
    goal: float | None = None
    note: str = ""
    unit: str = ""
    at_least: bool = False

    @property
    def holds(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal

    def row(self) -> tuple[str, ...]:
        unit = f" {self.unit}" if self.unit else ""
        bound = "" if self.bound is None else f"{self.bounded_by} {_number(self.bound)}{unit}"
        ratio = "" if not self.bound else f"{self.value / self.bound:.2f} x"
        goal = "" if self.goal is None else f"{'>=' if self.at_least else '<='} {self.goal:g}{unit}"
        verdict = {None: "", True: "yes", False: "NO"}[self.holds]
        return self.what, f"{_number(self.value)}{unit}", bound, ratio, goal, verdict, self.note

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


HEADINGS = ("milliseconds", "figure", "bounded by", "ratio", "goal", "holds", "")


def render(sections: Sequence[tuple[str, Sequence[Figure]]]) -> str:
    """The whole table as plain text."""
    rows = [(title, [figure.row() for figure in figures]) for title, figures in sections]
    everything = [HEADINGS, *(row for _, part in rows for row in part)]
    widths = [max(len(row[column]) for row in everything) for column in range(len(HEADINGS))]
    right = {1, 3, 4}

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, strict=True)
        return "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(cells)).rstrip()

    lines = [line(HEADINGS)]
    for title, part in rows:
        lines += ["", f"-- {title}", *(line(row) for row in part)]
    return "\n".join(lines)

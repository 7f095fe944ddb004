"""How long a job stood still for each of its generations, as the workers of one agent show.

A gap lasts from the last step that was committed before a generation to the first one in it, or in a later one if it
never came to a step.  What is rolled forward as a generation begins was made before it, and ends no gap.  Where others
made steps while nobody here did, as all here were spares or were started again, the gap is not known.  Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEPT = 64  # generations whose gap may still become known


class Gaps:
    """Fed with generations as they are published, and with commits as they are told; answers with gaps."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._last: float | None = None  # when the newest step of all was committed
        self._newest = (0, -1)  # the newest version that was made here, or rolled forward

    def see_plan(self, generation: int, over: bool = False) -> None:
        """A generation was published; `over`: the job has ended with it."""
        self._open = [] if over else [*self._open, generation][-KEPT:]

    def committed(self, fields: Mapping[str, Any], moment: float) -> list[tuple[int, float]]:
        """A worker committed a step at `moment` (seconds): the gaps that are known by that, by generation."""
        version, before = fields.get("version"), self._last
        if not isinstance(version, (list, tuple)) or len(version) != 2 or {type(word) for word in version} != {int}:
            return []
        generation, step = version
        missed = step > self._newest[1] + 1  # a step that others made
        self._newest = max(self._newest, (generation, step))
        if fields.get("rolled_forward"):
            return []
        ended = [number for number in self._open if number <= generation]
        self._open = [number for number in self._open if number > generation]
        self._last = moment if before is None else max(before, moment)
        return [(number, max(0.0, moment - before)) for number in ended] if before is not None and not missed else []

"""How long a job stood still for each of its generations, as the workers of one agent show.

A gap lasts from the last step that was committed before a generation to the first one in it, or in a later one if it
never came to a step.  What is rolled forward as a generation begins was made before it, and ends no gap.  Pure.
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

    def see_plan(self, generation: int, over: bool = False) -> None:
        """A generation was published; `over`: the job has ended with it."""
        self._open = [] if over else [*self._open, generation][-KEPT:]

    def committed(self, fields: Mapping[str, Any], moment: float) -> list[tuple[int, float]]:
        """A worker committed a step at `moment` (seconds): the gaps that are known by that, by generation."""
        version, before = fields.get("version"), self._last
        if not isinstance(version, (list, tuple)) or len(version) != 2 or type(version[0]) is not int:
            return []
        if fields.get("rolled_forward"):
            return []
        ended = [generation for generation in self._open if generation <= version[0]]
        self._open = [generation for generation in self._open if generation > version[0]]
        self._last = moment if before is None else max(before, moment)
        return [(generation, max(0.0, moment - before)) for generation in ended] if before is not None else []

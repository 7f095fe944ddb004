"""How evenly a job trains, as the fault tests measure it: a hole anywhere is seen, also at the ends."""

from __future__ import annotations

import pytest
from tests.faults.harness import Event
from tests.faults.pace import assert_as_even, pace


def steps(*times: float) -> list[Event]:
    """Each step is committed by two workers."""
    return [{"event": "committed", "step": n, "t": t + late} for n, t in enumerate(times) for late in (0.0, 0.01)]


EVEN = [0.1 * n for n in range(1, 101)]
BEFORE = pace(steps(*EVEN), 0.0, 10.05)


def test_an_even_pace_is_measured() -> None:
    assert BEFORE.steps == 100
    assert BEFORE.median == pytest.approx(0.1)
    assert BEFORE.longest == pytest.approx(0.1)
    assert_as_even(pace(steps(*EVEN), 2.0, 8.0), BEFORE, "nothing")


@pytest.mark.parametrize(
    "times",
    [
        [t for t in EVEN if not 4.0 < t < 5.5],
        [t for t in EVEN if t > 1.5],
        [t for t in EVEN if t < 8.5],
        [3 * t for t in EVEN],
        [t for t in EVEN if t % 1 < 0.35],
        [],
    ],
    ids=["a hole", "late", "stopped", "slow", "stuttering", "nothing"],
)
def test_what_is_uneven_is_seen(times: list[float]) -> None:
    with pytest.raises(AssertionError, match="through a fault"):
        assert_as_even(pace(steps(*times), 0.0, 10.0), BEFORE, "a fault")

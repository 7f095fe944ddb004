"""Whether a replica's own groups can be used on after an attempt that ended midway."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from reknit.runtime.recovery.midway import Midway


@dataclass
class Group:
    """A formation as far as its counters go."""

    sent: int | None = 0
    serial: int = 1
    ended: bool = False
    freed: threading.Event = field(default_factory=threading.Event)

    def traffic(self) -> int | None:
        return self.sent

    def interrupt(self) -> None:
        self.ended = True
        self.freed.set()


def after(left: bool, sent: int | None, *, serial: int = 1) -> tuple[int, int]:
    """What a worker says of an attempt in which so much was sent."""
    group, midway = Group(5), Midway()
    midway.open(group)
    group.sent = None if sent is None else 5 + sent
    group.serial = serial
    if left:
        midway.leave()
    return midway.words(group)


@pytest.mark.parametrize(
    ("said", "spoiled"),
    [
        ([after(False, 9), after(False, 9)], False),  # they were interrupted in the reduction, as usual
        ([after(True, 0), after(True, 0)], False),  # before anything was sent
        ([after(True, 0), after(False, 9)], True),  # perhaps to the one that left
        ([after(True, 9), after(False, 0)], True),
        ([after(True, None), after(True, None)], True),  # with NCCL nobody knows
        ([after(True, 0, serial=2), after(False, 0)], True),  # nothing is known of a group that was made since
    ],
)
def test_groups_are_used_on_unless_one_left_midway_and_something_was_sent(
    said: list[tuple[int, int]], spoiled: bool
) -> None:
    assert Midway.spoils(said) == spoiled


def test_once_all_know_it_counts_no_more() -> None:
    group, midway = Group(), Midway()
    midway.open(group)
    midway.leave()
    midway.settle()
    assert midway.words(group) == (0, 0)


def test_a_mate_that_begins_to_wait_for_one_that_left_midway_is_freed() -> None:
    group, midway = Group(), Midway()
    midway.open(group)
    midway.leave()
    with midway.freeing(group):
        assert not group.ended
        group.sent = 1
        assert group.freed.wait(10)


def test_nobody_is_interrupted_whose_mate_left_in_the_reduction_or_comes_as_well() -> None:
    for left in (False, True):
        group, midway = Group(), Midway()
        midway.open(group)
        if left:
            midway.leave()
        with midway.freeing(group):
            pass
        assert not group.ended

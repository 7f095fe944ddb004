"""From what a worker says once a second to the rare word in its record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reknit.rendezvous.errors import RecordError
from reknit.rendezvous.records import BUSY, LONG, SILENT, WAITS, Member, Stall, Version
from reknit.runtime.stalls import (
    Watch,
    after_event,
    after_pulse,
    after_silence,
    after_words,
    held_up,
    is_stopped,
    read_pulse,
    silence_after,
)

MEMBER = Member("w0", "a", "agent", "host", "127.0.0.1:1", coordinate=0, committed=Version(3, 40))


def stall(seconds: float, kind: str = BUSY, phase: str = "forward", **more: Any) -> Stall:
    usual: dict[str, Any] = {"generation": 3, "step": 41, "limit": 30.0}
    return Stall(**{**usual, "phase": phase, "kind": kind, "seconds": seconds, **more})


def test_a_pulse_is_read_or_refused() -> None:
    said = {"type": "pulse", "generation": 3, "step": 41, "phase": "forward", "kind": "busy", "seconds": 2, "limit": 30}
    assert read_pulse(said, "w0") == stall(2.0)
    for wrong in ({"kind": "bored"}, {"seconds": -1}, {"seconds": float("nan")}, {"limit": None}, {"generation": "x"}):
        with pytest.raises(RecordError, match="w0"):
            read_pulse({**said, **wrong}, "w0")


def test_only_what_takes_long_is_written_and_once() -> None:
    watch = Watch(heard=0.0)
    assert after_pulse(MEMBER, stall(4.9), watch, 100.0) is MEMBER
    written = after_pulse(MEMBER, stall(5.0), watch, 100.1)
    assert written.stall == stall(5.0)
    assert after_pulse(written, stall(6.1), watch, 101.2) is written
    assert after_pulse(written, stall(30.0), watch, 125.1) is written
    assert watch.limit == 30.0


@pytest.mark.parametrize(
    "other",
    [
        stall(6.0, WAITS),
        stall(6.0, LONG),
        stall(6.0, phase="backward"),
        stall(6.0, step=42),
        stall(6.0, generation=4),
        stall(60.0, limit=300.0),
        stall(8.5),  # began anew
    ],
)
def test_something_else_is_written_anew(other: Stall) -> None:
    watch = Watch(heard=0.0)
    written = after_pulse(MEMBER, stall(10.0), watch, 100.0)
    again = after_pulse(written, other, watch, 101.0)
    assert again.stall == other
    assert watch.written == 101.0


def test_who_moves_on_has_no_stall() -> None:
    watch = Watch(heard=0.0)
    busy = after_pulse(MEMBER, stall(10.0), watch, 100.0)
    waits = after_pulse(MEMBER, stall(10.0, WAITS), watch, 100.0)
    assert after_pulse(busy, stall(1.5), watch, 101.0) == MEMBER
    assert after_event(busy, "retried", watch) is busy
    assert not watch.stepped
    assert after_event(busy, "committed", watch) == MEMBER
    assert watch.stepped
    assert [after_words(busy, kind).stall for kind in ("ready", "left")] == [None, None]
    assert after_words(busy, "event") is busy
    assert after_words(waits, "ready").stall is None
    assert after_words(waits, "left") is waits  # a reinit does not restart the clock
    assert after_words(MEMBER, "ready") is MEMBER


def test_a_silent_worker_is_told_once_and_taken_back_at_any_word() -> None:
    watch = Watch(heard=100.0, stepped=True)
    assert after_silence(MEMBER, 3, watch, 30.0, False, 104.9) is MEMBER
    silent = after_silence(MEMBER, 3, watch, 30.0, False, 105.0)
    assert silent.stall == Stall(3, 40, "it says nothing any more", SILENT, 5.0, 30.0)
    assert after_silence(silent, 3, watch, 30.0, False, 109.0) is silent
    assert after_words(silent, "event") == MEMBER
    assert after_pulse(silent, stall(1.2), watch, 110.0) == MEMBER
    assert after_pulse(silent, stall(12.0), watch, 110.0).stall == stall(12.0)


def test_before_its_first_step_silence_may_be_compilation_unless_the_process_is_stopped() -> None:
    limits = [
        after_silence(MEMBER, 3, watch, 30.0, stopped, 200.0).stall
        for watch, stopped in (
            (Watch(100.0), False),
            (Watch(100.0), True),
            (Watch(100.0, limit=90.0, stepped=True), True),
            (Watch(100.0, limit=300.0), True),  # what it said while it compiled
        )
    ]
    assert [each and each.limit for each in limits] == [300.0, 30.0, 90.0, 30.0]


def test_the_patience_with_a_first_step_ends_with_it() -> None:
    watch = Watch(100.0)
    compiling = replace(stall(50.0), limit=300.0)
    after_event(after_pulse(MEMBER, compiling, watch, 150.0), "committed", watch)
    after_pulse(MEMBER, replace(compiling, seconds=0.0), watch, 151.0)  # what the pulse says of it when it is over
    silent = after_silence(MEMBER, 3, watch, 30.0, False, 200.0)
    assert silent.stall is not None
    assert silent.stall.limit == 30.0


def test_what_was_announced_may_hold_the_interpreter_but_not_stop_the_process() -> None:
    watch = Watch(100.0, stepped=True)
    evaluating = after_pulse(MEMBER, stall(1.0, LONG), watch, 100.0)
    assert after_silence(evaluating, 3, watch, 30.0, False, 200.0) is evaluating
    stopped = after_silence(evaluating, 3, watch, 30.0, True, 200.0)
    assert stopped.stall is not None
    assert (stopped.stall.kind, stopped.stall.limit) == (SILENT, 30.0)
    over = after_pulse(evaluating, stall(0.0, LONG), watch, 201.0)
    assert after_silence(over, 3, watch, 30.0, False, 300.0).stall is not None


def test_who_has_no_place_is_held_up_when_it_is_busy_or_silent_for_longer_than_a_start_may_take() -> None:
    watch = Watch(heard=100.0)
    building = after_pulse(MEMBER, stall(50.0, phase="building its model", limit=300.0), watch, 100.0)
    assert held_up(building, watch, 30.0, 349.9) is None
    assert held_up(building, watch, 30.0, 370.0) == "w0 has been building its model for 320 s"
    busy = after_pulse(MEMBER, stall(150.0, phase="between attempts", limit=600.0), watch, 100.0)
    assert held_up(busy, watch, 30.0, 549.0) is None
    assert held_up(busy, watch, 30.0, 550.0) == "w0 has been busy (between attempts) for 600 s"
    waits = after_pulse(MEMBER, stall(500.0, WAITS), watch, 700.0)
    watch.heard = 700.0
    assert held_up(waits, watch, 30.0, 999.0) is None
    assert held_up(waits, watch, 30.0, 1000.0) == "w0 has said nothing for 300 s"
    evaluating = after_pulse(MEMBER, stall(500.0, LONG), watch, 700.0)
    assert held_up(evaluating, watch, 30.0, 9999.0) is None


def test_between_two_pulses_nobody_is_silent() -> None:
    assert (silence_after(3.0), silence_after(60.0)) == (2.5, 10.0)


def test_the_kernel_says_who_is_stopped() -> None:
    assert is_stopped("42 (python (x) T) T 1 42")
    assert not is_stopped("42 (T) S 1 42")
    assert not is_stopped("")

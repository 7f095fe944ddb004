"""A worker's own time: what counts, what is only waiting, and what its agent is told."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from reknit.health.pace import EVERY
from reknit.runtime.pipeline import Pipeline, Share
from reknit.runtime.recovery.ballot import encode
from reknit.runtime.stopwatch import StageWatch, Stopwatch
from reknit.runtime.timekeeping import Timekeeper


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_own_time_is_from_the_begin_to_the_reduction_without_what_was_waiting() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    watch.begin()
    clock.now += 0.5
    watch.leave_out(0.2)
    watch.stop()
    clock.now += 7.0
    assert watch.own() == pytest.approx(0.3)
    assert watch.since_stop() == pytest.approx(7.0)
    watch.begin()
    clock.now += 0.1
    watch.stop()
    assert watch.own() == pytest.approx(0.1), "an attempt is timed by itself"


class Event:
    """A CUDA event on a stream whose time a test sets."""

    done = True

    def __init__(self, stream: Clock) -> None:
        self._stream, self.at = stream, 0.0

    def record(self) -> None:
        self.at = self._stream.now

    def query(self) -> bool:
        return self.done

    def elapsed_time(self, other: Event) -> float:
        return 1000 * (other.at - self.at)


def test_on_a_device_its_own_time_counts_and_only_once_it_is_known() -> None:
    host, device = Clock(), Clock()
    watch = Stopwatch(host, lambda: Event(device))
    watch.use(torch.device("cuda"))
    watch.begin()
    host.now += 0.01
    device.now += 0.4
    watch.stop()
    assert watch.own() == pytest.approx(0.4)
    Event.done = False
    try:
        assert watch.own() == pytest.approx(0.01)
    finally:
        Event.done = True


class Stage:
    """As torch's: what it does takes so long."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def forward_one_chunk(self, number: int) -> int:
        self._clock.now += 0.2
        return number

    def backward_one_chunk(self, number: int) -> None:
        self._clock.now += 0.3

    def backward_weight_one_chunk(self, number: int) -> None:
        raise AssertionError


class Schedule:
    def __init__(self, clock: Clock) -> None:
        self._clock, self._stage = clock, Stage(clock)

    def step(self, number: int) -> int:
        result = self._stage.forward_one_chunk(number)
        self._clock.now += 2.0  # waits for the other stage
        self._stage.backward_one_chunk(number)
        return result


def test_in_a_schedule_only_the_own_stages_work_counts() -> None:
    clock = Clock()
    watch, schedule = StageWatch(clock), Schedule(clock)
    watch.watch(schedule)
    for _ in range(2):
        result, waited = watch.waited(lambda: schedule.step(7))
        assert result == 7
        assert waited == pytest.approx(2.0)


def test_a_stage_that_is_timed_is_gone_at_once_when_its_schedule_is_dropped() -> None:
    clock = Clock()
    watch, schedule = StageWatch(clock), Schedule(clock)
    watch.watch(schedule)
    stage = weakref.ref(schedule._stage)
    del schedule
    assert stage() is None, "else it keeps the group of a formation that is over until the next garbage collection"


def test_of_a_schedule_that_is_not_torchs_nothing_counts_as_waiting() -> None:
    clock = Clock()
    watch = StageWatch(clock)
    watch.watch(SimpleNamespace(_stage=object()))

    def run() -> None:
        clock.now += 1.0

    assert watch.waited(run) == (None, 0.0)


def test_a_pipeline_tells_what_of_its_step_was_waiting() -> None:
    clock, told = Clock(), list[float]()
    share = Share(0, 2, None, 3, torch.device("cpu"))
    pipeline = Pipeline(lambda share: Schedule(clock), lambda: ("key", share), told.append)
    pipeline._stages = StageWatch(clock)
    assert pipeline.step(5) == 5
    assert told == [pytest.approx(2.0)]


def groups(rank: int, workers: list[str], mates: list[str], generation: int = 7) -> Any:
    names = [SimpleNamespace(worker_id=name) for name in workers]
    replica = SimpleNamespace(names=[SimpleNamespace(worker_id=name) for name in mates])
    return SimpleNamespace(generation=generation, peers=names, data_rank=rank, replica=replica)


def step(times: Timekeeper, clock: Clock, seconds: float, share: float, others: float, number: int) -> dict[str, Any]:
    clock.now += seconds
    times.stopwatch.stop()
    times.reduced(share)
    mine = times.ballot(7, 0, number)
    turn = number // EVERY
    speaks = number % EVERY == 0 and (turn % 2 == 1 or turn // 2 % 2 == 1)
    peers = [encode(0, 1, others if speaks else None)]
    assert times.hear(min(mine, *peers)) == 7
    times.voted([times.words(), (3000, 400_000)], 0.5)
    return times.fields()


def test_the_agent_is_told_the_slowest_of_all_groups_by_name() -> None:
    clock = Clock()
    times = Timekeeper()
    times.stopwatch = Stopwatch(clock)
    there = groups(0, ["a", "b"], ["a", "mate"])
    told: dict[str, Any] = {}
    for number in range(4 * EVERY + 1):
        times.begin(there)
        told = step(times, clock, 0.1, 1.0, 0.2, number)
        assert ("slowest" in told) == (number % EVERY == 0)
    assert told == {"own": pytest.approx(0.1), "wait": 0.5, "slowdown": 1.0, "slowest": ["mate", 3.0, 0.4]}


def test_a_larger_share_may_take_longer_but_a_smaller_one_need_not_be_quicker() -> None:
    clock = Clock()
    for seconds, share in ((0.3, 1.5), (0.2, 0.5)):
        times = Timekeeper()
        times.stopwatch = Stopwatch(clock)
        told: dict[str, Any] = {}
        there = groups(0, ["a", "b"], ["a", "mate"])
        for number in range(4 * EVERY + 1):
            times.begin(there)
            told = step(times, clock, seconds, share, 0.2, number)
        assert told["slowdown"] == pytest.approx(1.0, abs=1e-3)
        assert told["own"] == pytest.approx(seconds)


def test_a_newer_generation_that_all_know_comes_out_of_the_vote() -> None:
    times = Timekeeper()
    times.begin(groups(0, ["a", "b"], ["a"]))
    words = [times.ballot(9, 0, 0), encode(3)]
    assert times.hear(min(words)) == 9

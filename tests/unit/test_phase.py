"""Who waits and who lets others wait, told from what a training thread is at."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from reknit.rendezvous.errors import ReknitError
from reknit.rendezvous.records import BUSY, LONG, WAITS
from reknit.runtime.communicator import staging, work
from reknit.runtime.pulse import Pulse, files_of
from reknit.runtime.recovery import gradients, phase, recovery
from reknit.runtime.recovery.phase import PATIENT, SCRIPT, SHARED, At, Excuse, Phase, Stuck, Watch, kind_of, limit_of

HANG = 30.0
THREADING = threading.Thread.run.__code__.co_filename
USER = "/home/me/train.py"
TORCH = phase._TORCH
NN = f"{TORCH}/nn/modules/linear.py"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
SCHEDULE = f"{TORCH}/distributed/pipelining/schedules.py"
WORK = work.Work.wait.__code__.co_filename
STAGING = staging.stage.__code__.co_filename
GRADIENTS = gradients.Reduction.finish.__code__.co_filename
RECOVERY = recovery.Recovery.enter.__code__.co_filename


@pytest.mark.parametrize(
    ("scope", "files", "kind"),
    [
        (SCRIPT, [USER], BUSY),
        (SCRIPT, [NN, USER], BUSY),
        (SCRIPT, [THREADING, f"{TORCH}/utils/data/dataloader.py", USER], BUSY),
        (SCRIPT, [SCHEDULE, USER], WAITS),
        (SCRIPT, [NN, SCHEDULE, USER], BUSY),
        (SCRIPT, [f"{TORCH}/_ops.py", C10D, USER], WAITS),
        (SCRIPT, [f"{TORCH}/_ops.py", USER], BUSY),
        (SCRIPT, [f"{TORCH}/distributed/checkpoint/filesystem.py", USER], BUSY),
        (SCRIPT, [THREADING, WORK, USER], WAITS),
        (SCRIPT, ["/home/me/runtime/communicator/mine.py"], BUSY),
        (SHARED, [THREADING, WORK, GRADIENTS, USER], WAITS),
        (SHARED, [GRADIENTS, USER], BUSY),
        (SHARED, [STAGING, GRADIENTS, USER], BUSY),
        (PATIENT, [THREADING, RECOVERY, USER], WAITS),
        (PATIENT, [WORK, RECOVERY, USER], WAITS),
        (PATIENT, [NN, RECOVERY, USER], BUSY),
        (PATIENT, [USER, RECOVERY, USER], BUSY),
        (PATIENT, [STAGING, RECOVERY], BUSY),
        (SCRIPT, [THREADING], BUSY),
    ],
)
def test_what_a_thread_is_in_says_whether_it_waits(scope: str, files: list[str], kind: str) -> None:
    assert kind_of(At("somewhere", scope, 0.0), None, files, 100.0) == kind


@pytest.mark.parametrize(
    ("scope", "files", "until", "kind"),
    [
        (SCRIPT, [USER], 101.0, LONG),
        (SCRIPT, [C10D, USER], 101.0, LONG),
        (SCRIPT, [USER], 99.0, BUSY),
        (SCRIPT, [C10D, USER], 99.0, WAITS),
        (SHARED, [WORK, USER], 101.0, WAITS),
        (SHARED, [GRADIENTS, USER], 101.0, LONG),
        (PATIENT, [RECOVERY, USER], 101.0, WAITS),
    ],
)
def test_an_announced_phase_excuses_all_but_waiting_in_a_step(
    scope: str, files: list[str], until: float, kind: str
) -> None:
    assert kind_of(At("somewhere", scope, 0.0), Excuse("evaluation", 50.0, until), files, 100.0) == kind


def test_the_limit_follows_the_steps_and_the_first_one_may_compile() -> None:
    assert limit_of(BUSY, HANG, []) == 10 * HANG
    assert limit_of(WAITS, HANG, []) == HANG
    assert limit_of(BUSY, HANG, [0.1, 200.0, 0.1]) == HANG
    assert limit_of(WAITS, HANG, [4.0, 5.0, 600.0]) == 50.0


class Story:
    """A training thread and its clock, in the test's hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.files = [USER]
        self.phase = Phase(lambda: self.now)
        self._watch = Watch(self.phase, HANG, lambda thread: self.files)

    def look(self, *files: str, after: float = 0.0) -> Stuck | None:
        """Look once a second for `after` seconds, and tell what was seen last."""
        self.files = list(files) or self.files
        seen = self._watch.look(self.now, 1.0)
        while after >= 1.0:
            self.now, after = self.now + 1.0, after - 1.0
            seen = self._watch.look(self.now, 1.0)
        return seen

    def step(self, seconds: float) -> None:
        self.phase.enter("forward and backward")
        self.now += seconds
        self.phase.enter("the optimizer's step")
        self.phase.committed()
        self.phase.enter("between attempts")


@pytest.fixture
def story() -> Story:
    return Story()


def test_whoever_makes_steps_is_stuck_nowhere(story: Story) -> None:
    for _ in range(10):
        story.step(0.5)
        assert story.look(USER) is None


def test_a_loop_in_the_script_is_busy_since_the_phase_began(story: Story) -> None:
    story.step(2.0)
    story.phase.enter("forward and backward")
    assert story.look(USER, after=7) == Stuck("forward and backward", BUSY, 7.0, HANG)


def test_waiting_counts_from_the_last_step_across_a_reinit(story: Story) -> None:
    story.step(2.0)
    story.phase.enter("reduce", SHARED)
    story.look(WORK, GRADIENTS, after=10)
    for name in ("connect", "compare", "connect"):
        story.phase.enter(name, PATIENT)
        stuck = story.look(RECOVERY, after=5)
    assert stuck == Stuck("connect", WAITS, 25.0, HANG)
    story.phase.progressed()
    assert story.look() is None


def test_who_comes_late_has_not_been_waiting_all_the_time(story: Story) -> None:
    story.step(2.0)
    story.look(USER, after=100)
    story.phase.enter("reduce", SHARED)
    assert story.look(WORK, GRADIENTS, after=3) == Stuck("reduce", WAITS, 3.0, HANG)


def test_a_moment_of_work_does_not_restart_the_wait(story: Story) -> None:
    story.phase.enter("forward and backward")
    story.look(SCHEDULE, USER, after=20)
    assert story.look(NN, SCHEDULE, USER) == Stuck("forward and backward", BUSY, 0.0, 10 * HANG)
    assert story.look(SCHEDULE, USER, after=1) == Stuck("forward and backward", WAITS, 21.0, HANG)


def test_who_waited_in_a_phase_is_busy_in_it_only_since_then(story: Story) -> None:
    story.step(2.0)
    story.phase.enter("forward and backward")
    story.look(SCHEDULE, USER, after=20)
    assert story.look(NN, SCHEDULE, USER, after=4) == Stuck("forward and backward", BUSY, 4.0, HANG)


def test_a_long_phase_is_named_and_what_follows_it_has_just_begun(story: Story) -> None:
    story.step(2.0)
    with story.phase.long("evaluation"):
        assert story.look(USER, after=120) == Stuck("evaluation", LONG, 120.0, HANG)
    assert story.look(USER) == Stuck("between attempts", BUSY, 0.0, HANG)
    assert story.look(USER, after=2) == Stuck("between attempts", BUSY, 2.0, HANG)
    story.phase.enter("reduce", SHARED)
    assert story.look(WORK, after=3) == Stuck("reduce", WAITS, 3.0, HANG)


def test_many_short_phases_are_no_silence(story: Story) -> None:
    story.step(2.0)
    for batch in range(60):
        with story.phase.long(f"batch {batch}"):
            story.now += 0.7
            if batch:  # it got on less than a moment ago
                stuck = story.look(USER)
                assert stuck is not None
                assert stuck[:2] == (f"batch {batch}", LONG)
                assert stuck.seconds == pytest.approx(0.7)
            story.now += 0.3


def test_a_long_phase_that_takes_longer_than_it_said_is_busy_since_then(story: Story) -> None:
    story.step(2.0)
    with story.phase.long("evaluation", limit=60):
        assert story.look(USER, after=59) == Stuck("evaluation", LONG, 59.0, HANG)
        assert story.look(USER, after=11) == Stuck("between attempts", BUSY, 10.0, HANG)
        with story.phase.long("saving"):
            assert story.look(USER, after=5) == Stuck("saving", LONG, 5.0, HANG)
        assert story.look(USER, after=5) == Stuck("between attempts", BUSY, 5.0, HANG)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(story: Story, limit: float) -> None:
    with pytest.raises(ReknitError, match="evaluation"), story.phase.long("evaluation", limit):
        pass
    assert story.phase.excuse is None


def test_a_thread_that_has_ended_is_stuck_nowhere(story: Story) -> None:
    story.files = []
    assert story.look(after=50) is None


def test_a_threads_frames_are_named_innermost_first(within: Callable[[Callable[[], object]], None]) -> None:
    ended, thread = threading.Event(), threading.Thread(target=lambda: ended.wait())
    assert files_of(-1) == []
    thread.start()
    within(lambda: files_of(thread.ident or 0)[-4:].count(THREADING) >= 2 and __file__ in files_of(thread.ident or 0))
    assert files_of(thread.ident or 0)[0] == THREADING
    ended.set()
    thread.join()


@pytest.fixture
def within() -> Callable[[Callable[[], object]], None]:
    def within(condition: Callable[[], object]) -> None:
        patience = threading.Event()
        for _ in range(1000):
            if condition():
                return
            patience.wait(0.001)
        raise AssertionError("it does not come true")

    return within


def test_the_pulse_tells_what_is_stuck_and_when_it_no_longer_is(within: Callable[[Callable[[], object]], None]) -> None:
    told: list[Stuck] = []
    mine = Phase()
    pulse = Pulse(mine, hang=0.15, tell=told.append)
    pulse.start()
    within(lambda: len(told) >= 2)
    assert {stuck.kind for stuck in told} == {BUSY}
    count, before = len(told), told[-1].seconds
    mine.enter("another")
    mine.committed()
    within(lambda: any(stuck.seconds < before for stuck in told[count:]))  # 0, or it is stuck again already
    pulse.stop()


def test_a_pulse_that_fails_is_left_out_and_said_once(
    within: Callable[[Callable[[], object]], None], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Stuck] = []

    def tell(stuck: Stuck) -> None:
        told.append(stuck)
        if len(told) < 3:
            raise RuntimeError("not to be told")

    pulse = Pulse(Phase(), hang=0.15, tell=tell)
    pulse.start()
    within(lambda: len(told) > 3)
    pulse.stop()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["one pulse is left out"]

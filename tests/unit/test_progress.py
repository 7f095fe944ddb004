"""What the agent says between membership events."""

from __future__ import annotations

from reknit.runtime.progress import EVERY, Progress


def test_nothing_is_said_before_it_is_time() -> None:
    progress = Progress(2, said=0.0)
    assert progress.sentence(EVERY - 0.1, running=False, attached=1, finished=0) is None


def test_a_job_that_waits_says_for_how_many() -> None:
    progress = Progress(4, said=0.0)
    assert (
        progress.sentence(EVERY, False, 1, 0)
        == "waiting to begin: at least 4 must have built their models; attached here: 1"
    )
    assert progress.sentence(EVERY + 1, False, 1, 0) is None


def test_a_job_that_moves_on_says_its_step_and_the_sum_of_what_was_logged() -> None:
    progress = Progress(1, said=0.0)
    for step in range(1, 101):
        for part in (0.25, 0.5):
            progress.committed(step, {"loss": part})
    progress.committed(101, {"loss": 0.25})
    assert progress.sentence(EVERY, True, 2, 0) == "step 101, loss 0.75; 99 ms a step"


def test_a_job_that_stands_still_says_so() -> None:
    progress = Progress(1, said=0.0)
    progress.committed(7, {})
    progress.sentence(EVERY, True, 2, 0)
    said = progress.sentence(2 * EVERY, True, 2, 0)
    assert said is not None
    assert "no step for 10 s (the newest is 7)" in said


def test_workers_that_have_finished_wait_for_the_others() -> None:
    assert "have finished" in str(Progress(1, said=0.0).sentence(EVERY, True, 2, 2))


def test_a_host_whose_workers_are_still_starting_accuses_none_of_hanging() -> None:
    assert "no worker of this host has attached" in str(Progress(1, said=0.0).sentence(EVERY, True, 0, 0))


def test_who_is_held_up_is_named_whatever_else_there_is_to_say() -> None:
    progress, said = Progress(1, said=0.0), "worker-1 has been building its model for 320 s"
    progress.committed(100, {})
    assert progress.sentence(EVERY, True, 2, 0, [said]) == f"step 100; 100 ms a step; {said}"
    assert progress.sentence(EVERY + 1, True, 2, 0, [said]) is None
    assert str(progress.sentence(2 * EVERY, False, 2, 0, [said])).endswith(f"attached here: 2; {said}")
    assert str(progress.sentence(3 * EVERY, False, 2, 0, list("abcde"))).endswith("; a; b; c; 2 more are held up")
